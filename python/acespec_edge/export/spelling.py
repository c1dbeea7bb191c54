"""Norms, rotary positions and attention of a graph: one operator each, or written out in old operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from acespec_edge.export.ops import GraphWriter


@dataclass(frozen=True)
class Heads:
    """How attention reads rows: `count` heads of `size` floats each, scores times `scale`, then, with a
    `cap`, cap * tanh(score / cap)."""

    count: int
    size: int
    scale: float
    cap: float | None = None


class Spelling(Protocol):
    """The operations between the products. Rows are float32 [1, T, width]; every method names its output
    `out` and returns it. `kv_type` is the ring's number type, as onnx.TensorProto names it."""

    kv_type: int

    def rms_norm(self, x: str, out: str, gain: NDArray[np.float32], epsilon: float) -> str:
        """RMS norm over the last axis, times `gain` [its size]."""
        ...

    def rotate(self, x: str, out: str, angles: str, heads: int, size: int, turned: int) -> str:
        """Turns the first `turned` rows of each of `heads` heads of `size`, halves against each other, by
        {angles}_cos and {angles}_sin [1, T, turned / 2]."""
        ...

    def stored(self, x: str, out: str) -> str:
        """Rows of keys or values in the ring's number type."""
        ...

    def attention(self, q: str, keys: str, values: str, bias: str, out: str, heads: Heads) -> str:
        """Rows q [1, rows, heads] over the ring's keys and values [S, heads], bias float32 [rows, S]."""
        ...


class Opset23Spelling:
    """One operator for each, and a ring of float32."""

    kv_type: int = TensorProto.FLOAT

    def __init__(self, graph: GraphWriter) -> None:
        self._graph = graph

    def rms_norm(self, x: str, out: str, gain: NDArray[np.float32], epsilon: float) -> str:
        scale = self._graph.constant(f"{out}.gain", gain)
        return self._graph.node("RMSNormalization", [x, scale], out, axis=-1, epsilon=epsilon)

    def rotate(self, x: str, out: str, angles: str, heads: int, size: int, turned: int) -> str:
        inputs = [x, f"{angles}_cos", f"{angles}_sin"]
        partial: dict[str, Any] = {} if turned == size else {"rotary_embedding_dim": turned}
        return self._graph.node("RotaryEmbedding", inputs, out, num_heads=heads, **partial)

    def stored(self, x: str, out: str) -> str:
        return x

    def attention(self, q: str, keys: str, values: str, bias: str, out: str, heads: Heads) -> str:
        graph = self._graph
        if heads.cap is not None:
            # The operator caps after the bias in some runtimes, which would show what is hidden.
            return written_attention(graph, q, keys, values, bias, out, heads)
        batch = [graph.node("Unsqueeze", [x, graph.ints(0)], f"{x}.batch") for x in (keys, values)]
        counts: dict[str, Any] = {"q_num_heads": heads.count, "kv_num_heads": heads.count}
        return graph.node("Attention", [q, *batch, bias], out, scale=heads.scale, **counts)


class PlainSpelling:
    """Operators of opset 21 and older only, which GPU providers have kernels for, and a ring of float16.

    Norms, angles, scores and the residual stream stay float32: a float16 overflows at 65,504.
    """

    kv_type: int = TensorProto.FLOAT16

    def __init__(self, graph: GraphWriter) -> None:
        self._graph = graph

    def rms_norm(self, x: str, out: str, gain: NDArray[np.float32], epsilon: float) -> str:
        graph = self._graph
        square = graph.node("Mul", [x, x], f"{out}.square")
        mean = graph.node("ReduceMean", [square, graph.ints(-1)], f"{out}.mean", keepdims=1)
        least = graph.constant(f"epsilon.{epsilon}", np.array(epsilon, np.float32))
        size = graph.node("Sqrt", [graph.node("Add", [mean, least], f"{out}.power")], f"{out}.size")
        unit = graph.node("Div", [x, size], f"{out}.unit")
        return graph.node("Mul", [unit, graph.constant(f"{out}.gain", gain)], out)

    def rotate(self, x: str, out: str, angles: str, heads: int, size: int, turned: int) -> str:
        graph = self._graph
        split = graph.node("Reshape", [x, graph.ints(1, -1, heads, size)], f"{x}.by_head")
        half, rest = turned // 2, size - turned
        parts = [f"{x}.low", f"{x}.high", *([f"{x}.rest"] if rest else [])]
        graph.node("Split", [split, graph.ints(half, half, *([rest] if rest else []))], parts, axis=-1)
        cos, sin = (
            graph.node("Unsqueeze", [f"{angles}_{part}", graph.ints(2)], f"{x}.{part}")
            for part in ("cos", "sin")
        )

        def turn(first: str, second: str, op: str, name: str) -> str:
            along = graph.node("Mul", [first, cos], f"{x}.{name}.along")
            across = graph.node("Mul", [second, sin], f"{x}.{name}.across")
            return graph.node(op, [along, across], f"{x}.{name}")

        low = turn(parts[0], parts[1], "Sub", "low.turned")
        high = turn(parts[1], parts[0], "Add", "high.turned")
        whole = graph.node("Concat", [low, high, *parts[2:]], f"{x}.turned", axis=-1)
        return graph.node("Reshape", [whole, graph.ints(1, -1, heads * size)], out)

    def stored(self, x: str, out: str) -> str:
        return self._graph.node("Cast", [x], out, to=TensorProto.FLOAT16)

    def attention(self, q: str, keys: str, values: str, bias: str, out: str, heads: Heads) -> str:
        graph = self._graph
        half = graph.node("Cast", [q], f"{q}.half", to=TensorProto.FLOAT16)
        return written_attention(graph, half, keys, values, bias, out, heads, half=True)


def written_attention(
    graph: GraphWriter,
    q: str,
    keys: str,
    values: str,
    bias: str,
    out: str,
    heads: Heads,
    *,
    half: bool = False,
) -> str:
    """Attention in products and a softmax. `half`: rows, keys and values are float16; scores never are."""
    by_head = {}
    for x, order in ((q, (1, 0, 2)), (keys, (1, 2, 0)), (values, (1, 0, 2))):
        split = graph.node("Reshape", [x, graph.ints(-1, heads.count, heads.size)], f"{x}.split")
        by_head[x] = graph.node("Transpose", [split], f"{x}.first", perm=order)
    scores = graph.node("MatMul", [by_head[q], by_head[keys]], f"{out}.products")
    if half:
        scores = graph.node("Cast", [scores], f"{out}.wide", to=TensorProto.FLOAT)
    if heads.cap is None:
        scale = graph.constant("attention_scale", np.array(heads.scale, np.float32))
        scores = graph.node("Mul", [scores, scale], f"{out}.scores")
    else:
        scores = soft_capped(graph, scores, f"{out}.scores", heads.scale, heads.cap)
    seen = graph.node("Add", [scores, bias], f"{out}.seen")
    shares = graph.node("Softmax", [seen], f"{out}.shares", axis=-1)
    if half:
        shares = graph.node("Cast", [shares], f"{out}.half_shares", to=TensorProto.FLOAT16)
    mixed = graph.node("MatMul", [shares, by_head[values]], f"{out}.mixed")
    by_row = graph.node("Transpose", [mixed], f"{out}.by_row", perm=(1, 0, 2))
    joined = f"{out}.joined" if half else out
    graph.node("Reshape", [by_row, graph.ints(1, -1, heads.count * heads.size)], joined)
    return graph.node("Cast", [joined], out, to=TensorProto.FLOAT) if half else out


def soft_capped(graph: GraphWriter, x: str, out: str, scale: float, cap: float) -> str:
    """Adds cap * tanh(scale * x / cap) as `out`, and returns `out`."""
    inner = graph.constant(f"soft_cap.{scale}.{cap}", np.array(scale / cap, np.float32))
    outer = graph.constant(f"soft_cap.{cap}", np.array(cap, np.float32))
    bent = graph.node("Tanh", [graph.node("Mul", [x, inner], f"{out}.scaled")], f"{out}.bent")
    return graph.node("Mul", [bent, outer], out)
