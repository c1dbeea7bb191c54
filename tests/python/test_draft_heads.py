"""Heads that come with the package."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from acespec_edge import draft_heads
from acespec_edge.commands.models import app
from acespec_edge.draft_heads import HEADS, WEIGHTS, DraftHead, resolve
from acespec_edge.errors import UsageError
from acespec_edge.model_registry import MODELS


def test_every_head_lies_beside_its_name() -> None:
    for name, head in HEADS.items():
        assert head.name == name and head.target in MODELS and name not in MODELS
        weights = head.folder / WEIGHTS
        assert weights.stat().st_size == head.bytes < 25_000_000
        assert hashlib.sha256(weights.read_bytes()).hexdigest() == head.sha256
        config = json.loads((head.folder / "config.json").read_text())
        assert (
            config["speculators_model_type"] == "dlite"
            and config["target"]["name"] == MODELS[head.target].title
        )
        assert resolve(name) == head.folder


def test_other_weights_and_missing_ones_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(b"right").hexdigest()
    head = DraftHead("tiny-dlite", "Tiny", "tiny", "Apache-2.0", 5, digest)
    monkeypatch.setitem(HEADS, "tiny-dlite", head)
    monkeypatch.setattr(DraftHead, "folder", property(lambda self: tmp_path))
    with pytest.raises(UsageError, match=r"model.safetensors: No such file .* install acespec-edge again"):
        resolve("tiny-dlite")
    (tmp_path / WEIGHTS).write_bytes(b"wrong")
    with pytest.raises(UsageError, match="not the weights of tiny-dlite"):
        resolve("tiny-dlite")
    (tmp_path / WEIGHTS).write_bytes(b"right")
    assert resolve("tiny-dlite") == tmp_path == resolve(str(tmp_path))
    with pytest.raises(UsageError, match=r"'tiny' is no folder. Give one .* one of smollm2-135m-dlite"):
        resolve("tiny")


def test_the_commands_show_a_head_and_pull_it() -> None:
    run, name = CliRunner(), "smollm2-135m-dlite"
    folder = str(HEADS[name].folder)
    listed = json.loads(run.invoke(app, ["list", "--json"]).stdout)["models"]
    assert next(row for row in listed if row["name"] == name)["path"] == folder
    assert f"{name:<20} DLite for SmolLM2-135M" in run.invoke(app, ["list"]).stdout
    assert run.invoke(app, ["pull", name]).stdout.strip() == folder
    pulled = json.loads(run.invoke(app, ["pull", name, "--json"]).stdout)
    assert (pulled["path"], pulled["sha256"]) == (folder, HEADS[name].sha256)
    unknown = run.invoke(app, ["pull", "smollm2-dlite"])
    assert isinstance(unknown.exception, UsageError) and draft_heads.HEADS
