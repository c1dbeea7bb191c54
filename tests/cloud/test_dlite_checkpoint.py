"""A head on disk: the layout, what is left out, and which heads are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from acespec_edge import _core
from acespec_edge.errors import UsageError
from cloud_stub.dlite.checkpoint import load_head, read_config, save_head
from cloud_stub.dlite.head_runtime import HeadRuntime
from cloud_stub.dlite.identity import Identity, difference, sketch
from cloud_stub.service import Service
from tests.cloud.dlite_kit import make_head, make_target
from tests.cloud.test_cli import run
from tests.cloud.test_torch_verifier import PADDED

TARGET = make_target()


@pytest.mark.parametrize(
    "changes",
    [{}, {"backbone": "full", "rnn": False}, {"draft_vocabulary": 16, "confidence": True, "depth": False}],
)
def test_what_is_loaded_is_what_was_saved(tmp_path: Path, changes: dict[str, Any]) -> None:
    head = make_head(TARGET, **changes)
    save_head(tmp_path, head, Identity.of(TARGET), dtype=torch.float32)
    loaded = load_head(tmp_path, TARGET)
    assert loaded.config == head.config and not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    for name, value in head.trained().items():
        assert torch.equal(loaded.trained()[name], value), name
    assert torch.equal(loaded.draft_ids, head.draft_ids)
    assert loaded.embedding.data_ptr() == TARGET.model.get_input_embeddings().weight.data_ptr()
    assert not list(tmp_path.glob("*.partial"))


def test_the_layout_is_that_of_speculators(tmp_path: Path) -> None:
    head = make_head(TARGET, draft_vocabulary=16)
    save_head(tmp_path, head, Identity.of(TARGET))
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["speculators_model_type"] == "dlite" and written["sample_from_anchor"] is False
    assert written["aux_hidden_state_layer_ids"] == [1, 2], "counted in hidden_states"
    assert written["draft_vocab_size"] == 16
    config = written["speculators_config"]
    assert config["proposal_methods"][0]["speculative_tokens"] == 5
    assert config["verifier"]["name_or_path"] == "tiny"
    layer = written["transformer_layer_config"]
    assert (layer["hidden_size"], layer["num_hidden_layers"], layer["vocab_size"]) == (32, 2, PADDED)
    tensors = load_file(tmp_path / "model.safetensors")
    assert (tensors["d2t"] + torch.arange(16)).tolist() == head.draft_ids.tolist()
    assert tensors["t2d"].nonzero()[:, 0].tolist() == head.draft_ids.tolist()
    frozen = TARGET.model.get_input_embeddings().weight.shape
    assert all(tensor.shape != frozen for tensor in tensors.values()), "the target's own weights stay out"
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_head_works_in_the_type_of_its_target(tmp_path: Path) -> None:
    save_head(tmp_path, make_head(TARGET, confidence=True), Identity.of(TARGET))
    half = make_target()
    half.model.to(torch.bfloat16)
    runtime = HeadRuntime.load(tmp_path, half)
    handle = half.open()
    handle.prefill([1, 2, 3])
    assert handle.features is not None and handle.features.dtype == torch.bfloat16
    assert len(runtime.propose(handle, 4, 4, _core.SamplingRules(), 5, 0.0)) == 5


def test_a_head_of_another_target_is_refused_and_both_are_named(tmp_path: Path) -> None:
    save_head(tmp_path, make_head(TARGET), Identity.of(TARGET))
    other = make_target(name="other")
    with torch.no_grad():
        other.model.get_input_embeddings().weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(1))
    with pytest.raises(UsageError, match=r"trained for tiny, and the target is other: the shapes are alike"):
        load_head(tmp_path, other)
    written = json.loads((tmp_path / "config.json").read_text())
    for field, value, words in (
        ("layers", 9, "number of layers is 9 there, 2 here"),
        ("hidden", 64, "hidden size is 64 there, 32 here"),
        ("width", 80, "width of the logits is 80 there"),
        ("tokenizer", "ab" * 32, "tokenizer's fingerprint is abababab there"),
    ):
        changed = {**written, "target": {**written["target"], field: value}}
        (tmp_path / "config.json").write_text(json.dumps(changed))
        with pytest.raises(UsageError, match=rf"trained for tiny, and the target is tiny: the {words}"):
            load_head(tmp_path, TARGET)


def test_rounding_a_target_does_not_make_it_another() -> None:
    torch.manual_seed(4)
    weights = torch.randn(500, 256)
    whole = sketch(weights)
    assert difference(whole, sketch(weights.bfloat16())) < 0.01
    step = weights.abs().amax(1, keepdim=True) / 7
    assert difference(whole, sketch((weights / step).round() * step)) < 0.15, "four bits"
    assert difference(whole, sketch(torch.randn(500, 256))) > 1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c | {"speculators_model_type": "eagle3"}, "speculators_model_type is 'eagle3': 'dlite'"),
        (lambda c: c | {"draft_vocab_size": 1 << 40}, "draft_vocabulary is 1099511627776: 1 to"),
        (lambda c: c | {"rank": 9}, "tensor rnn"),
        (lambda c: c | {"rank": "9"}, "model.rank is '9'"),
        (lambda c: c | {"aux_hidden_state_layer_ids": [0, 1]}, "aux_layers is"),
        (lambda c: c | {"aux_hidden_state_layer_ids": [1, 3]}, "0 to 1 are the target's"),
        (lambda c: {k: v for k, v in c.items() if k != "transformer_layer_config"}, "not the layout"),
        (lambda c: {k: v for k, v in c.items() if k != "target"}, "not the layout"),
        (lambda c: c | {"target": {}}, "is not described"),
        (lambda c: [], "speculators_model_type is None"),
    ],
)
def test_damaged_configurations_are_named(tmp_path: Path, change: Any, words: str) -> None:
    save_head(tmp_path, make_head(TARGET), Identity.of(TARGET))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(UsageError, match=words):
        load_head(tmp_path, TARGET)


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a folder with a DLite head would be right"):
        read_config(tmp_path)
    save_head(tmp_path, make_head(TARGET, draft_vocabulary=16), Identity.of(TARGET))
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    for change, words in (
        ({"t2d": ~tensors["t2d"]}, "d2t and t2d do not name the same 16"),
        ({"norm.weight": torch.zeros(3)}, r"tensor norm.weight is of shape \[3\]"),
        ({"more": torch.zeros(3)}, "tensor more is of shape .* makes it absent"),
    ):
        save_file(tensors | change, path)
        with pytest.raises(UsageError, match=words):
            load_head(tmp_path, TARGET)
    path.write_bytes(b"pickle?")
    with pytest.raises(UsageError, match="cannot be read"):
        load_head(tmp_path, TARGET)


def test_the_command_refuses_what_is_no_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cloud_stub.verifiers.loading.load_verifier", lambda *_, **__: TARGET)
    assert run(monkeypatch, "serve", "--model", "x", "--port", "0", "--dlite", str(tmp_path)) == 2
    assert "a folder with a DLite head would be right" in capsys.readouterr().err
    assert run(monkeypatch, "serve", "--model", "x", "--port", "0", "--dlite", "none") == 2
    assert "'none' is no folder. Give one with a DLite head, or one of smollm2" in capsys.readouterr().err


def test_the_command_serves_a_head_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_head(tmp_path, make_head(TARGET), Identity.of(TARGET))
    served: list[Service] = []
    init = Service.__init__
    monkeypatch.setattr(Service, "__init__", lambda self, *a: (served.append(self), init(self, *a))[1])
    monkeypatch.setattr("cloud_stub.verifiers.loading.load_verifier", lambda *_, **__: make_target())
    monkeypatch.setattr("cloud_stub.server.CloudServer.run", lambda self, sockets: None)
    arguments = ["--model", "x", "--port", "0", "--dlite", str(tmp_path), "--dlite-nodes", "2.5"]
    assert run(monkeypatch, "serve", *arguments) == 0
    assert f"dlite     {tmp_path}, blocks of 5, 2.5 nodes a token at most\n" in capsys.readouterr().out
    assert served[0].self_drafting is not None and served[0].self_drafting.per_token == 2.5
    served[0].close()
