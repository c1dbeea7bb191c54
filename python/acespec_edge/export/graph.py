"""The decoder as one ONNX graph: T rows, their keys and values put into slots of a ring, logits for some.

inputs   input_ids int64 [1, T], position_ids int64 [1, T], kv_slots int64 [T], attention_bias float32 [T, S],
         rows int64 [R], past_k.{l} and past_v.{l} float32 [S, kv_width]
outputs  logits float32 [R, logits_width], present_k.{l} and present_v.{l} float32 [S, kv_width]

A caller may bind present_x.{l} to the buffer of past_x.{l}: the writes then happen in place.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from acespec_edge.export import architecture as names
from acespec_edge.export.architecture import ModelSpec, Source, layer_tensor
from acespec_edge.export.blocks import Operators
from acespec_edge.export.ops import GraphWriter
from acespec_edge.export.rotary import rotary_frequencies

Progress = Callable[[str, float], None]


class DecoderGraph:
    """Writes the graph of one source, layer after layer: float weights of one part are in memory at a time.

    Query heads are reordered from [kv_heads, group] to [group, kv_heads], in the weights. A row of queries is
    then `group` rows of `kv_heads` heads each without moving a byte, so attention runs over group * T rows as
    if every head had keys of its own, and the runtime prepares a key head once rather than `group` times.
    """

    def __init__(self, source: Source, graph: GraphWriter, operators: Operators) -> None:
        self._source = source
        self._spec: ModelSpec = source.spec
        self._graph = graph
        self._operators = operators
        self._group = source.spec.heads // source.spec.kv_heads
        self._bias = "attention_bias"

    def write(self, progress: Progress) -> None:
        """Adds everything to the graph; `progress` is told what is being done and the fraction finished."""
        spec, operators = self._spec, self._operators
        progress("embedding and head", 0.0)
        embed = self._tensor(names.EMBED)
        operators.embed_and_head(embed, None if spec.tied_head else self._tensor(names.HEAD))
        del embed
        self._inputs()
        x = operators.embed("input_ids", "embed")
        residual = ""
        for layer in range(spec.layers):
            progress(f"layer {layer + 1} of {spec.layers}", (layer + 1) / (spec.layers + 2))
            x, residual = self._layer(layer, x, residual)
        final, _ = self._add_norm(x, residual, "final_norm", self._tensor(names.FINAL_NORM))
        operators.head(final, "logits")
        self._outputs()

    def _inputs(self) -> None:
        spec, graph = self._spec, self._graph
        graph.input("input_ids", TensorProto.INT64, [1, "T"])
        graph.input("position_ids", TensorProto.INT64, [1, "T"])
        graph.input("kv_slots", TensorProto.INT64, ["T"])
        graph.input("attention_bias", TensorProto.FLOAT, ["T", "S"])
        graph.input("rows", TensorProto.INT64, ["R"])
        for layer in range(spec.layers):
            for part in "kv":
                graph.input(f"past_{part}.{layer}", TensorProto.FLOAT, ["S", spec.kv_width])
        graph.node("Unsqueeze", ["kv_slots", graph.ints(0, 2)], "slot_index")
        self._fold_bias()
        # The angles of a forward are computed once: a table of them would be as long as the longest context.
        graph.node("Cast", ["position_ids"], "positions", to=TensorProto.FLOAT)
        graph.node("Unsqueeze", ["positions", graph.ints(2)], "position_column")
        frequencies = graph.constant("rotary_frequencies", rotary_frequencies(spec))
        graph.node("Mul", ["position_column", frequencies], "angles")
        graph.node("Cos", ["angles"], "rotary_cos")
        graph.node("Sin", ["angles"], "rotary_sin")

    def _fold_bias(self) -> None:
        """Repeats each row of the bias for every query head of a group: [T, S] -> [T * group, S]."""
        graph = self._graph
        if self._group == 1:
            return
        graph.node("Unsqueeze", ["attention_bias", graph.ints(1)], "bias_row")
        graph.node("Expand", ["bias_row", graph.ints(1, self._group, 1)], "bias_group")
        graph.node("Shape", ["attention_bias"], "visible", start=1, end=2)
        graph.node("Concat", [graph.ints(-1), "visible"], "bias_shape", axis=0)
        graph.node("Reshape", ["bias_group", "bias_shape"], "folded_bias")
        self._bias = "folded_bias"

    def _outputs(self) -> None:
        spec, graph = self._spec, self._graph
        graph.output("logits", TensorProto.FLOAT, ["R", spec.logits_width])
        for layer in range(spec.layers):
            for part in "kv":
                graph.output(f"present_{part}.{layer}", TensorProto.FLOAT, ["S", spec.kv_width])

    def _layer(self, layer: int, x: str, residual: str) -> tuple[str, str]:
        """Takes the last block's output and the residual stream before it ("" for none); returns its own.

        The last layer's output and stream are [R, hidden]: beyond its keys and values only `rows` matter.
        """
        operators, prefix = self._operators, f"l{layer}"
        gain = self._layer_tensor(layer, names.ATTN_NORM)
        if residual:
            normed, stream = self._add_norm(x, residual, f"{prefix}.attn_norm", gain)
        else:
            normed, stream = self._norm(x, f"{prefix}.attn_norm", gain), x
        attended = self._attention(layer, normed)
        if layer == self._spec.layers - 1:
            attended, stream = self._wanted_rows(attended, prefix), self._wanted_rows(stream, prefix)
        weight = self._folded(self._layer_tensor(layer, names.O).T).T
        projected = operators.matmul(attended, f"{prefix}.attn_out", weight)
        gain = self._layer_tensor(layer, names.MLP_NORM)
        normed, stream = self._add_norm(projected, stream, f"{prefix}.mlp_norm", gain)
        return self._mlp(layer, normed), stream

    def _wanted_rows(self, x: str, prefix: str) -> str:
        rows = self._graph.node("Gather", [x, "rows"], f"{x}.rows", axis=1)
        return self._graph.node("Squeeze", [rows, self._graph.ints(0)], f"{x}.wanted")

    def _attention(self, layer: int, x: str) -> str:
        spec, graph, operators, prefix = self._spec, self._graph, self._operators, f"l{layer}"
        weights = [
            self._folded(self._layer_tensor(layer, names.Q)),
            self._layer_tensor(layer, names.K),
            self._layer_tensor(layer, names.V),
        ]
        bias = None
        if spec.qkv_bias:
            bias = np.concatenate([
                self._folded(self._layer_tensor(layer, names.Q_BIAS)),
                self._layer_tensor(layer, names.K_BIAS),
                self._layer_tensor(layer, names.V_BIAS),
            ])  # fmt: skip
        operators.matmul(x, f"{prefix}.qkv", np.concatenate(weights), bias)
        parts = [f"{prefix}.{part}" for part in "qkv"]
        graph.node(
            "Split", [f"{prefix}.qkv", graph.ints(spec.q_width, spec.kv_width, spec.kv_width)], parts, axis=-1
        )
        q, k, v = parts
        if spec.qk_norm:
            q = self._head_norm(q, spec.heads, self._layer_tensor(layer, names.Q_NORM))
            k = self._head_norm(k, spec.kv_heads, self._layer_tensor(layer, names.K_NORM))
        q = self._rotate(q, spec.heads)
        k = self._rotate(k, spec.kv_heads)
        keys = self._write("k", layer, k)
        values = self._write("v", layer, v)
        if self._group > 1:
            q = graph.node("Reshape", [q, graph.ints(1, -1, spec.kv_width)], f"{prefix}.q.folded")
        attended = graph.node(
            "Attention",
            [q, keys, values, self._bias],
            f"{prefix}.attended",
            q_num_heads=spec.kv_heads,
            kv_num_heads=spec.kv_heads,
            scale=float(spec.head_dim) ** -0.5,
        )
        if self._group > 1:
            attended = graph.node(
                "Reshape", [attended, graph.ints(1, -1, spec.q_width)], f"{prefix}.attended.rows"
            )
        return attended

    def _head_norm(self, x: str, heads: int, gain: NDArray[np.float32]) -> str:
        """RMS norm of each head on its own."""
        graph, size = self._graph, self._spec.head_dim
        split = graph.node("Reshape", [x, graph.ints(0, 0, heads, size)], f"{x}.heads")
        normed = self._norm(split, f"{x}.normed", gain)
        return graph.node("Reshape", [normed, graph.ints(0, 0, heads * size)], f"{x}.joined")

    def _rotate(self, x: str, heads: int) -> str:
        return self._graph.node(
            "RotaryEmbedding", [x, "rotary_cos", "rotary_sin"], f"{x}.rotated", num_heads=heads
        )

    def _write(self, part: str, layer: int, x: str) -> str:
        """Writes rows [1, T, kv_width] to their slots and returns the ring as [1, S, kv_width]."""
        graph = self._graph
        present = f"present_{part}.{layer}"
        graph.node("ScatterND", [f"past_{part}.{layer}", "slot_index", x], present)
        return graph.node("Unsqueeze", [present, graph.ints(0)], f"{present}.batch")

    def _mlp(self, layer: int, x: str) -> str:
        graph, operators, prefix = self._graph, self._operators, f"l{layer}"
        weight = np.concatenate([self._layer_tensor(layer, names.GATE), self._layer_tensor(layer, names.UP)])
        operators.matmul(x, f"{prefix}.gate_up", weight)
        gate, up = f"{prefix}.gate", f"{prefix}.up"
        graph.node("Split", [f"{prefix}.gate_up"], [gate, up], axis=-1, num_outputs=2)
        active = self._silu(gate, f"{prefix}.active")
        product = graph.node("Mul", [active, up], f"{prefix}.gated")
        weight = self._layer_tensor(layer, names.DOWN)
        return operators.matmul(product, f"{prefix}.mlp_out", weight)

    def _norm(self, x: str, out: str, gain: NDArray[np.float32]) -> str:
        """RMS norm over the last axis, times `gain`."""
        scale = self._graph.constant(f"{out}.gain", gain)
        epsilon = self._spec.rms_eps
        return self._graph.node("RMSNormalization", [x, scale], out, axis=-1, epsilon=epsilon)

    def _add_norm(self, x: str, residual: str, out: str, gain: NDArray[np.float32]) -> tuple[str, str]:
        """The norm of x + residual, and x + residual itself."""
        total = self._graph.node("Add", [x, residual], f"{out}.sum")
        return self._norm(total, out, gain), total

    def _silu(self, x: str, out: str) -> str:
        gate = self._graph.node("Sigmoid", [x], f"{out}.sigmoid")
        return self._graph.node("Mul", [x, gate], out)

    def _folded(self, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
        """Reorders the query heads (first axis) from [kv_heads, group] to [group, kv_heads]."""
        spec = self._spec
        heads = tensor.reshape(spec.kv_heads, self._group, spec.head_dim, *tensor.shape[1:])
        folded: NDArray[np.float32] = heads.swapaxes(0, 1).reshape(tensor.shape)
        return folded

    def _layer_tensor(self, layer: int, name: str) -> NDArray[np.float32]:
        return self._tensor(layer_tensor(layer, name))

    def _tensor(self, name: str) -> NDArray[np.float32]:
        return self._source.tensor(name)
