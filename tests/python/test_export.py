"""The exported graph against transformers, and the promises of export_bundle."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.errors import UsageError
from acespec_edge.export.build import export_bundle
from acespec_edge.export.quantize import quantize_blocks
from acespec_edge.export.sources import open_source
from acespec_edge.ort_library import ort_library
from tests.python.small_models import CONFIGS, PADDED, TOKENS, GraphRunner, save_random_model

KINDS = list(CONFIGS)
PROMPT = [256, 17, 3, 99, 200, 45, 45, 131, 8, 222, 61, 5]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, torch.nn.Module]]:
    torch.set_num_threads(1)
    made = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        made[kind] = (folder, save_random_model(kind, folder))
    return made


@pytest.fixture(scope="module")
def exact(
    models: dict[str, tuple[Path, torch.nn.Module]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("exact")
    return {
        kind: export_bundle(open_source(folder), out / kind, "fp32") for kind, (folder, _) in models.items()
    }


def expected(model: torch.nn.Module, tokens: list[int]) -> NDArray[np.float32]:
    """transformers' logits of every position."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
    return np.asarray(logits.numpy(), np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(kind, models, exact) -> None:
    # Long enough for the scaled rotary frequencies to differ from the plain ones.
    tokens = [(7 * index * index + 3 * index) % TOKENS for index in range(120)]
    reference = expected(models[kind][1], tokens)
    logits = GraphRunner(exact[kind]).prefill(tokens)
    assert logits.shape == (120, PADDED)
    assert np.abs(reference).max() > 1
    assert np.abs(logits - reference).max() < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_forward_is_one_forward_per_path(kind, models, exact) -> None:
    runner = GraphRunner(exact[kind])
    runner.prefill(PROMPT)
    # node: (token, parent). Slots of the nodes are scattered and out of order.
    nodes = [(10, None), (20, 0), (30, 0), (40, 1), (50, 2), (60, None), (70, 5)]
    slots = [40, 22, 57, 13, 30, 63, 12]
    paths = []
    for index, (_, parent) in enumerate(nodes):
        paths.append([*(paths[parent] if parent is not None else []), index])
    base = len(PROMPT)
    logits = runner.forward(
        [token for token, _ in nodes],
        [base + len(path) - 1 for path in paths],
        slots,
        [[*range(base), *(slots[node] for node in path)] for path in paths],
    )
    for row, path in enumerate(paths):
        reference = expected(models[kind][1], PROMPT + [nodes[node][0] for node in path])[-1]
        assert np.abs(logits[row] - reference).max() < 1e-3, path


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_rewinding_and_appending_is_a_fresh_prefill(kind, exact) -> None:
    runner = GraphRunner(exact[kind])
    runner.prefill(PROMPT)
    changed = [*PROMPT[:7], 1, 2, 3, 4]
    appended = runner.prefill(changed, start=7)
    fresh = GraphRunner(exact[kind]).prefill(changed)
    assert np.abs(appended - fresh[7:]).max() < 1e-4


def test_slots_are_not_positions(exact) -> None:
    """The same tokens give the same logits wherever in the ring they lie."""
    plain = GraphRunner(exact["qwen2"]).prefill(PROMPT)
    moved = GraphRunner(exact["qwen2"]).prefill(PROMPT, slots=[70, 3, 8, 99, 41, 0, 5, 64, 127, 31, 2, 77])
    assert np.abs(plain - moved).max() < 1e-4


def test_only_wanted_rows_have_logits(exact) -> None:
    sees = [range(index + 1) for index in range(len(PROMPT))]
    run = GraphRunner(exact["qwen2"]).forward
    whole = run(PROMPT, range(len(PROMPT)), range(len(PROMPT)), sees)
    some = run(PROMPT, range(len(PROMPT)), range(len(PROMPT)), sees, rows=[2, 11])
    assert np.abs(some - whole[[2, 11]]).max() < 1e-4
    none = run(PROMPT, range(len(PROMPT)), range(len(PROMPT)), sees, rows=[])
    assert none.shape == (0, PADDED)


def test_a_quantised_graph_asks_for_no_other_operators_than_promised(models, tmp_path) -> None:
    out = export_bundle(open_source(models["qwen3"][0]), tmp_path / "b", "int4")
    graph = onnx.load(out / "model.onnx", load_external_data=False)
    assert {entry.domain: entry.version for entry in graph.opset_import} == {"": 23, "com.microsoft": 1}
    own = {node.op_type for node in graph.graph.node if node.domain == "com.microsoft"}
    assert own == {"MatMulNBits", "GatherBlockQuantized"}


def test_the_best_logits_are_those_of_the_table_and_the_others_coarse(models, tmp_path) -> None:
    folder, model = models["qwen2"]
    out = export_bundle(open_source(folder), tmp_path / "b", "int8")
    graph = onnx.load(out / "model.onnx", load_external_data=False)
    hidden = next(node.input[0] for node in graph.graph.node if node.name == "logits.coarse")
    graph.graph.output.append(onnx.helper.make_tensor_value_info(hidden, onnx.TensorProto.FLOAT, None))
    onnx.save(graph, out / "model.onnx")
    runner = GraphRunner(out)
    feeds = {
        "input_ids": np.array([PROMPT], np.int64),
        "position_ids": np.arange(len(PROMPT))[None],
        "kv_slots": np.arange(len(PROMPT)),
        "attention_bias": np.where(np.tri(len(PROMPT), 64) > 0, np.float32(0), np.float32(-np.inf)),
        "rows": np.arange(len(PROMPT)),
    }
    feeds |= {name: ring[:64] for name, ring in runner.ring.items()}
    logits, rows = runner.session.run(["logits", hidden], feeds)
    table = open_source(folder).tensor("head" if not model.config.tie_word_embeddings else "embed")
    exact = rows @ quantize_blocks(table, 8, 32).dequantize().T
    best = np.argsort(-logits, axis=1)
    for row in range(len(PROMPT)):
        error = np.abs(logits[row] - exact[row])
        assert error[best[row, :8]].max() < 1e-3
        assert (error < 1e-3).sum() >= 32
        assert error.max() > 1e-2


def test_the_exact_graph_has_standard_operators_only(exact) -> None:
    graph = onnx.load(exact["qwen3"] / "model.onnx", load_external_data=False)
    assert {entry.domain: entry.version for entry in graph.opset_import} == {"": 23}
    onnx.checker.check_model(str(exact["qwen3"] / "model.onnx"), full_check=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("quant", "likeness"), [("int4", 0.8), ("int8", 0.99)])
def test_quantised_logits_resemble_the_exact_ones(kind, quant, likeness, models, tmp_path) -> None:
    # Random weights magnify rounding layer by layer, so the floors are low; a wrong layout gives about 0.
    folder, model = models[kind]
    out = export_bundle(open_source(folder), tmp_path / "bundle", quant)
    tokens = [(11 * index + 5) % TOKENS for index in range(40)]
    reference = expected(model, tokens)
    logits = GraphRunner(out).prefill(tokens)
    cosine = (logits * reference).sum(1) / np.linalg.norm(logits, axis=1) / np.linalg.norm(reference, axis=1)
    assert cosine.mean() > likeness


@pytest.mark.parametrize("quant", ["fp32", "int4"])
def test_the_native_engine_says_the_same(quant, models, tmp_path) -> None:
    bundle = Bundle.load(export_bundle(open_source(models["qwen2"][0]), tmp_path / "b", quant))
    engine = _core.OrtEngine(str(bundle.model_file), ort_library(), slots=128, vocabulary=bundle.vocabulary)
    assert (engine.info.vocabulary, engine.info.logits_width) == (TOKENS, PADDED)
    places = list(range(len(PROMPT)))
    bias = np.where(np.arange(64) <= np.array(places)[:, None], 0, -np.inf).astype(np.float32)
    native = engine.forward(PROMPT, places, places, bias, places)
    assert np.abs(native - GraphRunner(bundle.path).prefill(PROMPT)).max() < 1e-4


def test_the_bundle_says_what_it_is(models, tmp_path) -> None:
    heard: list[tuple[str, float]] = []
    out = export_bundle(
        open_source(models["qwen3"][0]), tmp_path / "b", "int8", lambda what, done: heard.append((what, done))
    )
    bundle = Bundle.load(out, verify=True)
    assert (bundle.architecture, bundle.layers, bundle.hidden, bundle.quant) == ("qwen3", 3, 64, "int8")
    assert (bundle.heads, bundle.kv_heads, bundle.head_dim, bundle.kv_width) == (4, 2, 32, 64)
    assert (bundle.vocabulary, bundle.logits_width, bundle.max_positions) == (TOKENS, PADDED, 512)
    assert sorted(bundle.sha256) == ["model.onnx", "model.onnx.data", "tokenizer.json"]
    assert bundle.eos_ids == [257]
    assert [done for _, done in heard] == sorted(done for _, done in heard)
    assert heard[-1] == ("done", 1.0)


def test_an_earlier_bundle_is_replaced_and_nothing_else(models, tmp_path) -> None:
    source = open_source(models["llama"][0])
    out = export_bundle(source, tmp_path / "b", "int4")
    export_bundle(source, out, "int8")
    assert Bundle.load(out).quant == "int8"
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"]
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.jpg").write_bytes(b"meow")
    with pytest.raises(UsageError, match="photos"):
        export_bundle(source, other)
    assert (other / "cat.jpg").read_bytes() == b"meow"


def test_a_failed_export_leaves_the_old_bundle_and_no_rest(models, tmp_path) -> None:
    source = open_source(models["llama"][0])
    out = export_bundle(source, tmp_path / "b", "int4")
    before = json.loads((out / "acespec.json").read_text())

    def give_up(what: str, done: float) -> None:
        if what.startswith("layer 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_bundle(source, out, "int8", give_up)
    assert json.loads((out / "acespec.json").read_text()) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"]


def test_an_unknown_quantisation_is_refused_by_name(models, tmp_path) -> None:
    with pytest.raises(UsageError, match=r"'int3'.*int4, int8, fp32"):
        export_bundle(open_source(models["llama"][0]), tmp_path / "b", "int3")
    assert list(tmp_path.iterdir()) == []
