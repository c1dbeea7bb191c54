"""Attention of every layer over the ring: rotary positions, windows, and who sees whom."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from acespec_edge.export import architecture as names
from acespec_edge.export.architecture import ModelSpec
from acespec_edge.export.blocks import Operators
from acespec_edge.export.ops import GraphWriter
from acespec_edge.export.rotary import rotary_frequencies
from acespec_edge.export.spelling import Heads, Spelling

LayerTensor = Callable[[int, str], NDArray[np.float32]]
"""A layer's tensor by its number and the canonical name within it."""


class AttentionWriter:
    """Writes what all layers share, once, by `inputs()`, then the attention of layers by `attend()`.

    Query heads are reordered from [kv_heads, group] to [group, kv_heads], in the weights. A row of queries is
    then `group` rows of `kv_heads` heads each without moving a byte, so attention runs over group * T rows as
    if every head had keys of its own, and the runtime prepares a key head once rather than `group` times.

    The bias says who may be seen. A slot is not a position, so a layer with a window also needs to know where
    each slot lies: the graph then has the input slot_positions.
    """

    def __init__(
        self,
        spec: ModelSpec,
        graph: GraphWriter,
        operators: Operators,
        spelling: Spelling,
        tensor: LayerTensor,
    ) -> None:
        self._spec = spec
        self._spelling = spelling
        scale = spec.attention_scale or float(spec.head_dim) ** -0.5
        self._heads = Heads(spec.kv_heads, spec.head_dim, scale, spec.attention_softcap)
        self._graph = graph
        self._operators = operators
        self._tensor = tensor
        self._group = spec.heads // spec.kv_heads
        self._biases: dict[int, str] = {}  # by window

    def inputs(self) -> None:
        """Declares position_ids, kv_slots, attention_bias and, for windows, slot_positions, and writes what
        is made of them once for all layers."""
        spec, graph = self._spec, self._graph
        graph.input("position_ids", TensorProto.INT64, [1, "T"])
        graph.input("kv_slots", TensorProto.INT64, ["T"])
        graph.input("attention_bias", TensorProto.FLOAT, ["T", "S"])
        graph.node("Unsqueeze", ["kv_slots", graph.ints(0, 2)], "slot_index")
        windows = {spec.window(layer) for layer in range(spec.layers)}
        if windows != {0}:
            graph.input("slot_positions", TensorProto.INT64, ["S"])
            graph.node("Reshape", ["position_ids", graph.ints(-1, 1)], "row_position")
            graph.node("Sub", ["row_position", "slot_positions"], "distance")
        for window in sorted(windows):
            self._biases[window] = self._folded_bias(self._bias_within(window))
        # The angles of a forward are computed once: a table of them would be as long as the longest context.
        graph.node("Cast", ["position_ids"], "positions", to=TensorProto.FLOAT)
        graph.node("Unsqueeze", ["positions", graph.ints(2)], "position_column")
        self._angles("rotary", windowed=False)
        if spec.window_rope_theta is not None:
            self._angles("window_rotary", windowed=True)

    def attend(self, layer: int, x: str) -> str:
        """Rows [1, T, hidden] -> [1, T, q_width]: keys and values go into their slots, then rows attend.
        Heads are in the folded order, which `folded()` gives to the weights that follow."""
        spec, graph, prefix = self._spec, self._graph, f"l{layer}"
        q, k, v = self._project(layer, x)
        if spec.qk_norm:
            q = self._head_norm(q, spec.heads, self._tensor(layer, names.Q_NORM))
            k = self._head_norm(k, spec.kv_heads, self._tensor(layer, names.K_NORM))
        if layer not in spec.unrotated:
            own = spec.window(layer) > 0 and spec.window_rope_theta is not None
            angles = "window_rotary" if own else "rotary"
            sizes = (spec.head_dim, spec.rotary_dim)
            q = self._spelling.rotate(q, f"{q}.rotated", angles, spec.heads, *sizes)
            k = self._spelling.rotate(k, f"{k}.rotated", angles, spec.kv_heads, *sizes)
        k, v = (self._spelling.stored(x, f"{x}.stored") for x in (k, v))
        keys = graph.node("ScatterND", [f"past_k.{layer}", "slot_index", k], f"present_k.{layer}")
        values = graph.node("ScatterND", [f"past_v.{layer}", "slot_index", v], f"present_v.{layer}")
        if self._group > 1:
            q = graph.node("Reshape", [q, graph.ints(1, -1, spec.kv_width)], f"{prefix}.q.folded")
        bias = self._biases[spec.window(layer)]
        attended = self._spelling.attention(q, keys, values, bias, f"{prefix}.attended", self._heads)
        if self._group > 1:
            attended = graph.node("Reshape", [attended, graph.ints(1, -1, spec.q_width)], f"{attended}.rows")
        return attended

    def folded(self, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
        """Reorders the query heads (first axis) from [kv_heads, group] to [group, kv_heads]."""
        spec = self._spec
        heads = tensor.reshape(spec.kv_heads, self._group, spec.head_dim, *tensor.shape[1:])
        folded: NDArray[np.float32] = heads.swapaxes(0, 1).reshape(tensor.shape)
        return folded

    def _project(self, layer: int, x: str) -> list[str]:
        spec, graph, prefix = self._spec, self._graph, f"l{layer}"
        weights = [
            self.folded(self._tensor(layer, names.Q)),
            self._tensor(layer, names.K),
            self._tensor(layer, names.V),
        ]
        bias = None
        if spec.qkv_bias:
            bias = np.concatenate([
                self.folded(self._tensor(layer, names.Q_BIAS)),
                self._tensor(layer, names.K_BIAS),
                self._tensor(layer, names.V_BIAS),
            ])  # fmt: skip
        self._operators.matmul(x, f"{prefix}.qkv", np.concatenate(weights), bias)
        parts = [f"{prefix}.{part}" for part in "qkv"]
        widths = graph.ints(spec.q_width, spec.kv_width, spec.kv_width)
        graph.node("Split", [f"{prefix}.qkv", widths], parts, axis=-1)
        return parts

    def _bias_within(self, window: int) -> str:
        """The bias [T, S] less what lies `window` positions back and beyond; 0: the caller's own."""
        if not window:
            return "attention_bias"
        graph = self._graph
        limit = graph.constant(f"window.{window}", np.array(window, np.int64))
        hidden = graph.constant("hidden", np.array(-np.inf, np.float32))
        near = graph.node("Less", ["distance", limit], f"near.{window}")
        return graph.node("Where", [near, "attention_bias", hidden], f"attention_bias.{window}")

    def _folded_bias(self, bias: str) -> str:
        """Repeats each row of the bias for every query head of a group: [T, S] -> [T * group, S]."""
        graph = self._graph
        if self._group == 1:
            return bias
        graph.node("Unsqueeze", [bias, graph.ints(1)], f"{bias}.row")
        graph.node("Expand", [f"{bias}.row", graph.ints(1, self._group, 1)], f"{bias}.group")
        graph.node("Shape", [bias], f"{bias}.visible", start=1, end=2)
        graph.node("Concat", [graph.ints(-1), f"{bias}.visible"], f"{bias}.shape", axis=0)
        return graph.node("Reshape", [f"{bias}.group", f"{bias}.shape"], f"{bias}.folded")

    def _angles(self, name: str, *, windowed: bool) -> None:
        """Cosines and sines [1, T, rotary_dim / 2] of the rows' positions: {name}_cos and {name}_sin."""
        spec, graph = self._spec, self._graph
        frequencies = graph.constant(f"{name}_frequencies", rotary_frequencies(spec, windowed=windowed))
        graph.node("Mul", ["position_column", frequencies], f"{name}_angles")
        for op in ("Cos", "Sin"):
            out = f"{name}_{op.lower()}"
            if spec.rope_magnitude == 1:
                graph.node(op, [f"{name}_angles"], out)
                continue
            magnitude = graph.constant("rotary_magnitude", np.array(spec.rope_magnitude, np.float32))
            graph.node("Mul", [graph.node(op, [f"{name}_angles"], f"{out}.unit"), magnitude], out)

    def _head_norm(self, x: str, heads: int, gain: NDArray[np.float32]) -> str:
        """RMS norm of each head on its own."""
        graph, size = self._graph, self._spec.head_dim
        split = graph.node("Reshape", [x, graph.ints(0, 0, heads, size)], f"{x}.heads")
        normed = self._spelling.rms_norm(split, f"{x}.normed", gain, self._spec.rms_eps)
        return graph.node("Reshape", [normed, graph.ints(0, 0, heads * size)], f"{x}.joined")
