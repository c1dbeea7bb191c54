"""`acespec export`: from a model on disk to a bundle that opens."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from acespec_edge.bundle import Bundle
from acespec_edge.commands.export import export
from acespec_edge.drafting import load_drafter
from acespec_edge.errors import UsageError
from tests.python.model_kit import (
    random_model,
    random_tensors,
    save_folder,
    shape_fields,
    tokenizer_fields,
    write_gguf,
)

app = typer.Typer()
app.command()(export)


def test_a_folder_becomes_a_bundle(tmp_path: Path) -> None:
    folder = save_folder(random_model("qwen3", tied=True), tmp_path / "model")
    out = tmp_path / "bundle"
    run = CliRunner().invoke(app, [str(folder), "--out", str(out), "--target", "cpu-fp32", "--json"])
    assert run.exception is None
    said = json.loads(run.stdout)
    bundle = Bundle.load(out, verify=True)
    assert (bundle.name, bundle.architecture, bundle.quant, bundle.source) == (
        "model",
        "qwen3",
        "fp32",
        str(folder),
    )
    assert (said["path"], said["tokenizer_fingerprint"]) == (str(out), bundle.tokenizer_fingerprint)
    assert said["bytes"] == sum(file.stat().st_size for file in out.iterdir())
    assert bundle.chat_template == "{{ messages }}"


def test_a_gguf_file_becomes_a_bundle_in_one_line(tmp_path: Path) -> None:
    fields = shape_fields("llama") | tokenizer_fields() | {"general.license": "mit"}
    path = write_gguf(tmp_path / "m.gguf", fields, random_tensors("llama"))
    run = CliRunner().invoke(app, [str(path), "--out", str(tmp_path / "bundle")])
    assert run.exception is None
    bundle = Bundle.load(tmp_path / "bundle", verify=True)
    assert (bundle.name, bundle.quant, bundle.licence) == ("Tiny", "int4", "mit")
    assert run.stdout.startswith(
        f"{bundle.path}: Tiny (mit), int4, 2 layers, {bundle.vocabulary} tokens, tokenizer "
    )
    assert run.stdout.count("\n") == 1
    assert run.stderr == ""  # bars are for terminals


def test_a_source_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["nothing-here", "--out", str(tmp_path / "bundle")])
    assert isinstance(run.exception, UsageError)
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_alone_is_a_bundle_without_a_model(tmp_path: Path) -> None:
    folder = save_folder(random_model("llama"), tmp_path / "model")
    run = CliRunner().invoke(app, [str(folder), "--out", str(tmp_path / "bundle"), "--target", "none"])
    assert run.exception is None
    bundle = Bundle.load(tmp_path / "bundle", verify=True)
    assert not bundle.has_model and sorted(bundle.sha256) == ["chat_template.jinja", "tokenizer.json"]
    with pytest.raises(UsageError, match="no model; use it with drafter 'lookup'"):
        load_drafter(bundle, context=64, cache_mb=1, threads=1)


def test_a_bundle_for_a_gpu_says_so(tmp_path: Path) -> None:
    folder = save_folder(random_model("llama"), tmp_path / "model")
    run = CliRunner().invoke(app, [str(folder), "--out", str(tmp_path / "bundle"), "--target", "cuda-fp16"])
    assert run.exception is None
    bundle = Bundle.load(tmp_path / "bundle", verify=True)
    assert (bundle.quant, bundle.providers, bundle.kv_bytes) == ("cuda-fp16", ("cuda", "cpu"), 2)


def test_the_export_says_how_often_it_agrees_with_exact_weights(tmp_path: Path) -> None:
    folder = save_folder(random_model("llama"), tmp_path / "model")
    arguments = [str(folder), "--out", str(tmp_path / "bundle"), "--agreement", "--target"]
    run = CliRunner().invoke(app, [*arguments, "cpu-fp32", "--json"])
    assert run.exception is None
    said = json.loads(run.stdout)
    assert said["agreement"] == 1 and said["compared"] > 100
    text = CliRunner().invoke(app, [*arguments, "cpu-int4"]).stdout
    found = re.search(r"agrees with the exact weights on ([0-9.]+)% of [0-9]+ tokens", text)
    assert found is not None and 10 < float(found[1]) < 100
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bundle", "model"]


@pytest.mark.parametrize("target", ["cpu-int3", "CPU-INT4", "int4"])
def test_an_unknown_target_is_a_usage_error(tmp_path: Path, target: str) -> None:
    assert CliRunner().invoke(app, ["x", "--out", str(tmp_path), "--target", target]).exit_code == 2
