"""Engines by their contract: a mask decides what a row sees, a slot is only storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from acespec_edge import _core, ort_library
from acespec_edge.errors import EngineError, UsageError
from tests.clock import steady
from tests.python.engine_kit import CLOSE, GRANULE, VECTORS, Ring, fake, last_reference, load, tokens_of
from tests.vectors import make_tiny_model as tiny


@pytest.fixture(scope="module")
def engine() -> _core.OrtEngine:
    return load()


def test_info(engine: _core.OrtEngine) -> None:
    info = engine.info
    assert (info.name, info.provider) == ("tiny", "cpu")
    assert (info.vocabulary, info.logits_width, info.slots) == (64, 64, 256)
    assert info.bytes_per_slot == tiny.LAYERS * 2 * tiny.KV_WIDTH * 4
    assert (engine.max_rows, engine.visible_granule) == (64, GRANULE)


def test_checked_in_model_is_what_the_script_makes() -> None:
    stored = onnx.load(str(VECTORS / "tiny_model.onnx"))
    assert stored.graph == tiny.build().graph


def test_prefill_is_the_reference(engine: _core.OrtEngine) -> None:
    prompt = tokens_of(1, 60)
    logits, _ = Ring(engine).chain([], prompt)
    np.testing.assert_allclose(logits, tiny.reference(prompt), atol=CLOSE)


def test_slots_in_any_order_give_the_same(engine: _core.OrtEngine) -> None:
    prompt = tokens_of(2, 60)
    straight, _ = Ring(engine).chain([], prompt)
    for seed in range(5):
        order = [int(s) for s in np.random.default_rng(seed).permutation(256)]
        scattered, _ = Ring(engine, order).chain([], prompt)
        np.testing.assert_allclose(scattered, straight, atol=CLOSE)


def test_tree_is_one_forward_per_path(engine: _core.OrtEngine) -> None:
    """Random trees: each node's logits are those of a plain forward over its path alone."""
    random = np.random.default_rng(7)
    for _ in range(5):
        order = [int(s) for s in random.permutation(256)]
        ring = Ring(engine, order)
        prompt = tokens_of(int(random.integers(100)), int(random.integers(1, 40)))
        _, context = ring.chain([], prompt)
        nodes: list[tuple[list[int], int]] = []
        for i in range(16):
            parent = int(random.integers(-1, i)) if i else -1
            nodes.append((context if parent < 0 else [-parent - 1], int(random.integers(64))))
        logits, paths = ring.forward(nodes)
        for row, path in zip(logits, paths, strict=True):
            np.testing.assert_allclose(row, last_reference(ring.text(path)), atol=CLOSE)


def test_n2_rewind_and_append_is_a_fresh_prefill(engine: _core.OrtEngine) -> None:
    """Twenty drafted tokens are dropped, their slots used again: nothing of them is left."""
    prompt, dropped, kept = tokens_of(3, 30), tokens_of(4, 20), tokens_of(5, 20)
    ring = Ring(engine)
    _, context = ring.chain([], prompt)
    _, drafted = ring.chain(context, dropped)
    ring.drop(drafted[len(context) :])
    appended, _ = ring.chain(context, kept)
    fresh, _ = Ring(engine).chain([], prompt + kept)
    np.testing.assert_allclose(appended, fresh[len(prompt) :], atol=CLOSE)
    np.testing.assert_allclose(appended[-1], last_reference(prompt + kept), atol=CLOSE)


def test_k1_two_hundred_rejections_and_acceptances(engine: _core.OrtEngine) -> None:
    """Odd rounds reject the last two of four drafted tokens, even ones accept all; slots are reused."""
    random = np.random.default_rng(11)
    ring = Ring(engine, [int(s) for s in random.permutation(192)])
    _, context = ring.chain([], tokens_of(6, 8))
    for number in range(200):
        if len(context) > 120:  # a new request
            ring.drop(context)
            _, context = ring.chain([], tokens_of(number, 8))
        logits, path = ring.chain(context, [int(t) for t in random.integers(0, 64, 4)])
        keep = len(context) + (2 if number % 2 else 4)
        if number % 20 in (0, 1):
            np.testing.assert_allclose(logits[-1], last_reference(ring.text(path)), atol=CLOSE)
        ring.drop(path[keep:])
        context = path[:keep]
    logits, path = ring.chain(context, [9])
    np.testing.assert_allclose(logits[-1], last_reference(ring.text(path)), atol=CLOSE)


def test_only_wanted_rows_come_back(engine: _core.OrtEngine) -> None:
    prompt = tokens_of(8, 10)
    bias = np.where(np.arange(GRANULE) <= np.arange(10)[:, None], 0, -1e9).astype(np.float32)
    logits = engine.forward(prompt, list(range(10)), list(range(10)), bias, [3, 9])
    np.testing.assert_allclose(logits, tiny.reference(prompt)[[3, 9]], atol=CLOSE)
    assert engine.forward(prompt, list(range(10)), list(range(10)), bias, []).shape == (0, 64)


@pytest.mark.native
def test_m1_memory_stays_flat() -> None:
    """5,000 forwards of every shape after the first few hundred: less than 2 MiB more."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    engine = load(slots=1024)
    random = np.random.default_rng(12)

    def run(calls: int) -> None:
        for _ in range(calls):
            count = int(random.choice([1, 1, 2, 4, 8, 16, 33, 64]))
            visible = GRANULE * int(random.integers(1, 17))
            slots = [int(s) for s in random.choice(visible, count, replace=False)]
            rows = sorted(
                int(r) for r in random.choice(count, int(random.integers(1, count + 1)), replace=False)
            )
            engine.forward([1] * count, [5] * count, slots, np.zeros((count, visible), np.float32), rows)

    run(300)
    before = resident()
    run(5000)
    assert resident() - before < 2 << 20


def test_two_engines_keep_their_own_rings() -> None:
    first, second = Ring(load()), Ring(load(VECTORS / "tiny_model_kv16.onnx"))
    a, b = tokens_of(13, 12), tokens_of(14, 12)
    _, path_a = first.chain([], a[:6])
    _, path_b = second.chain([], b[:6])
    logits_a, _ = first.chain(path_a, a[6:])
    logits_b, _ = second.chain(path_b, b[6:])
    np.testing.assert_allclose(logits_a[-1], last_reference(a), atol=CLOSE)
    np.testing.assert_allclose(logits_b[-1], last_reference(b), atol=0.05)


def test_logits_are_a_copy(engine: _core.OrtEngine) -> None:
    ring = Ring(engine)
    first, path = ring.chain([], [1])
    kept = first.copy()
    ring.chain(path, [2])
    np.testing.assert_array_equal(first, kept)


Change = Callable[[onnx.ModelProto], None]


def _retype(name: str, kind: int, *shape: int | str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        for value in (*model.graph.input, *model.graph.output):
            if value.name == name:
                value.CopyFrom(helper.make_tensor_value_info(name, kind, list(shape)))

    return change


def _rename(old: str, new: str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        for value in (*model.graph.input, *model.graph.output):
            if value.name == old:
                value.name = new
        for node in model.graph.node:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]

    return change


def _extra_input(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("extra", TensorProto.FLOAT, [1]))
    model.graph.node.append(helper.make_node("Identity", ["extra"], ["extra_copy"]))
    model.graph.output.append(helper.make_tensor_value_info("extra_copy", TensorProto.FLOAT, [1]))


def _forgetful(model: onnx.ModelProto) -> None:
    """Attention reads what was written, but what comes out is the old ring."""
    _rename("present_k.1", "written")(model)
    for value in model.graph.output:
        if value.name == "written":
            value.name = "present_k.1"
    model.graph.node.append(helper.make_node("Identity", ["past_k.1"], ["present_k.1"]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_rename("rows", "wanted"), "input rows is missing"),
        (_rename("present_v.1", "kept_v.1"), "output present_v.1 is missing"),
        (_rename("past_k.0", "old_k.0"), "input past_k.0 is missing"),
        (_extra_input, "input extra is unknown"),
        (_retype("kv_slots", TensorProto.INT64, 4), r"input kv_slots is int64\[4\], must be int64\[\?\]"),
        (
            _retype("attention_bias", TensorProto.FLOAT, 1, "T", "S"),
            r"is float32\[1, \?, \?\], must be float32\[\?",
        ),
        (_forgetful, "does not keep keys and values in place"),
    ],
)
def test_a_graph_off_the_contract_is_named(change: Change, says: str, tmp_path: Path) -> None:
    model = tiny.build()
    change(model)
    path = tmp_path / "model.onnx"
    onnx.save(model, str(path))
    with pytest.raises(EngineError, match=says):
        load(path)


def test_library_that_is_none(tmp_path: Path) -> None:
    library = tmp_path / "libonnxruntime.so"
    model = str(VECTORS / "tiny_model.onnx")
    with pytest.raises(EngineError, match="No such file"):
        _core.OrtEngine(model, str(library), slots=64, vocabulary=64)
    # An engine is open, so the process has its runtime, and another one is refused before it is looked into.
    load()
    library.write_bytes(b"not a library")
    with pytest.raises(UsageError, match="one process can use one ONNX Runtime only"):
        _core.OrtEngine(model, str(library), slots=64, vocabulary=64)


def test_library_of_the_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Path(ort_library.ort_library()).name.startswith("libonnxruntime.so")

    monkeypatch.setattr(ort_library, "find_spec", lambda _: None)
    with pytest.raises(EngineError, match="pip install 'onnxruntime"):
        ort_library.ort_library()

    class Empty:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(ort_library, "find_spec", lambda _: Empty)
    with pytest.raises(EngineError, match=r"holds no libonnxruntime\.so"):
        ort_library.ort_library()


def test_fake_logits_are_its_forward() -> None:
    engine = fake()
    prompt = tokens_of(15, 20)
    order = [int(s) for s in np.random.default_rng(0).permutation(256)]
    logits, _ = Ring(engine, order).chain([], prompt)
    for i, row in enumerate(logits):
        np.testing.assert_array_equal(row, engine.logits(prompt[: i + 1]))


def test_fake_drafter_agrees_in_part() -> None:
    target, drafter = fake(), fake(disagreement=0.2)
    paths = [[i % 64, i // 64] for i in range(1000)]
    same = sum(int(target.logits(p).argmax() == drafter.logits(p).argmax()) for p in paths)
    assert 820 <= same <= 920


def test_fake_judges_the_mask() -> None:
    engine = fake()
    bias = np.full((1, GRANULE), -np.inf, np.float32)
    bias[0, 5] = 0
    with pytest.raises(EngineError, match="slot 5, which was never written"):
        engine.forward([1], [0], [4], bias, [0])
    with pytest.raises(EngineError, match="row 0 at position 1 does not see position 0"):
        engine.forward([1], [1], [5], bias, [0])


@pytest.mark.parametrize("kind", [load, fake])
def test_misuse_is_the_callers(kind: Callable[[], _core.Engine]) -> None:
    engine = kind()
    bias = np.zeros((1, GRANULE), np.float32)
    with pytest.raises(UsageError, match=r"tokens\[0\] is 64, must be in 0..63"):
        engine.forward([64], [0], [0], bias, [0])
    with pytest.raises(UsageError, match="visible is 65, must be a multiple of 64"):
        engine.forward([1], [0], [0], np.zeros((1, 65), np.float32), [0])
    with pytest.raises(UsageError, match="bias has 1 dimensions"):
        engine.forward([1], [0], [0], bias[0], [0])


def test_forward_lets_other_threads_run() -> None:
    engine = fake(base_seconds=0.2)
    bias = np.full((1, GRANULE), -np.inf, np.float32)
    bias[0, 0] = 0

    def ticks_meanwhile() -> int:
        worker = threading.Thread(target=engine.forward, args=([1], [0], [0], bias, [0]))
        worker.start()
        ticks = 0
        while worker.is_alive():
            time.sleep(0.005)
            ticks += 1
        return ticks

    def are_many(ticks: int) -> None:
        assert ticks >= 5

    steady(ticks_meanwhile, are_many)
