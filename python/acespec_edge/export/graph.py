"""The decoder as one ONNX graph: T rows, their keys and values put into slots of a ring, logits for some.

inputs   input_ids int64 [1, T], position_ids int64 [1, T], kv_slots int64 [T], attention_bias float32 [T, S],
         rows int64 [R], past_k.{l} and past_v.{l} [S, kv_width], float32 or float16; with windowed layers
         slot_positions int64 [S], the position of what each visible slot holds once this forward's rows are
         written
outputs  logits float32 [R, logits_width], present_k.{l} and present_v.{l} [S, kv_width] like them

A caller may bind present_x.{l} to the buffer of past_x.{l}: the writes then happen in place.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from acespec_edge.export import architecture as names
from acespec_edge.export.architecture import ModelSpec, Source, layer_tensor
from acespec_edge.export.attention import AttentionWriter
from acespec_edge.export.blocks import Operators
from acespec_edge.export.ops import GraphWriter
from acespec_edge.export.spelling import Spelling, soft_capped

Progress = Callable[[str, float], None]


class DecoderGraph:
    """Writes the graph of one source, layer after layer: float weights of one part are in memory at a
    time."""

    def __init__(self, source: Source, graph: GraphWriter, operators: Operators, spelling: Spelling) -> None:
        self._source = source
        self._spec: ModelSpec = source.spec
        self._graph = graph
        self._operators = operators
        self._spelling = spelling
        self._attention = AttentionWriter(source.spec, graph, operators, spelling, self._layer_tensor)

    def write(self, progress: Progress) -> None:
        """Adds everything to the graph; `progress` is told what is being done and the fraction finished."""
        spec, operators = self._spec, self._operators
        progress("embedding and head", 0.0)
        embed = self._tensor(names.EMBED)
        operators.embed_and_head(embed, None if spec.tied_head else self._tensor(names.HEAD))
        del embed
        self._inputs()
        x = self._embedded()
        residual = ""
        for layer in range(spec.layers):
            progress(f"layer {layer + 1} of {spec.layers}", (layer + 1) / (spec.layers + 2))
            x, residual = self._layer(layer, x, residual)
        final, _ = self._add_norm(x, residual, "final_norm", self._tensor(names.FINAL_NORM))
        if spec.final_softcap is None:
            operators.head(final, "logits")
        else:
            soft_capped(self._graph, operators.head(final, "head"), "logits", 1.0, spec.final_softcap)
        self._outputs()

    def _inputs(self) -> None:
        spec, graph = self._spec, self._graph
        graph.input("input_ids", TensorProto.INT64, [1, "T"])
        graph.input("rows", TensorProto.INT64, ["R"])
        self._attention.inputs()
        for layer in range(spec.layers):
            for part in "kv":
                graph.input(f"past_{part}.{layer}", self._spelling.kv_type, ["S", spec.kv_width])

    def _embedded(self) -> str:
        x = self._operators.embed("input_ids", "embed")
        if self._spec.embed_scale == 1:
            return x
        scale = self._graph.constant("embed.scale", np.array(self._spec.embed_scale, np.float32))
        return self._graph.node("Mul", [x, scale], "embed.scaled")

    def _outputs(self) -> None:
        spec, graph = self._spec, self._graph
        graph.output("logits", TensorProto.FLOAT, ["R", spec.logits_width])
        for layer in range(spec.layers):
            for part in "kv":
                graph.output(f"present_{part}.{layer}", self._spelling.kv_type, ["S", spec.kv_width])

    def _layer(self, layer: int, x: str, residual: str) -> tuple[str, str]:
        """Takes the last block's output and the residual stream before it ("" for none); returns its own.

        The last layer's output and stream are [R, hidden]: beyond its keys and values only `rows` matter.
        """
        spec, prefix = self._spec, f"l{layer}"
        gain = self._layer_tensor(layer, names.ATTN_NORM)
        if residual:
            normed, stream = self._add_norm(x, residual, f"{prefix}.attn_norm", gain)
        else:
            normed, stream = self._norm(x, f"{prefix}.attn_norm", gain), x
        attended = self._attention.attend(layer, normed)
        if layer == spec.layers - 1:
            attended, stream = self._wanted_rows(attended, prefix), self._wanted_rows(stream, prefix)
        weight = self._attention.folded(self._layer_tensor(layer, names.O).T).T
        projected = self._operators.matmul(attended, f"{prefix}.attn_out", weight)
        if spec.post_norms:
            gain = self._layer_tensor(layer, names.POST_ATTN_NORM)
            projected = self._norm(projected, f"{prefix}.post_attn_norm", gain)
        gain = self._layer_tensor(layer, names.MLP_NORM)
        normed, stream = self._add_norm(projected, stream, f"{prefix}.mlp_norm", gain)
        out = self._mlp(layer, normed)
        if spec.post_norms:
            gain = self._layer_tensor(layer, names.POST_MLP_NORM)
            out = self._norm(out, f"{prefix}.post_mlp_norm", gain)
        return out, stream

    def _wanted_rows(self, x: str, prefix: str) -> str:
        rows = self._graph.node("Gather", [x, "rows"], f"{x}.rows", axis=1)
        return self._graph.node("Squeeze", [rows, self._graph.ints(0)], f"{x}.wanted")

    def _mlp(self, layer: int, x: str) -> str:
        graph, operators, prefix = self._graph, self._operators, f"l{layer}"
        weight = np.concatenate([self._layer_tensor(layer, names.GATE), self._layer_tensor(layer, names.UP)])
        operators.matmul(x, f"{prefix}.gate_up", weight)
        gate, up = f"{prefix}.gate", f"{prefix}.up"
        graph.node("Split", [f"{prefix}.gate_up"], [gate, up], axis=-1, num_outputs=2)
        active = f"{prefix}.active"
        if self._spec.activation == "silu":
            self._silu(gate, active)
        else:
            graph.node("Gelu", [gate], active, approximate="tanh")
        product = graph.node("Mul", [active, up], f"{prefix}.gated")
        weight = self._layer_tensor(layer, names.DOWN)
        return operators.matmul(product, f"{prefix}.mlp_out", weight)

    def _norm(self, x: str, out: str, gain: NDArray[np.float32]) -> str:
        return self._spelling.rms_norm(x, out, gain, self._spec.rms_eps)

    def _add_norm(self, x: str, residual: str, out: str, gain: NDArray[np.float32]) -> tuple[str, str]:
        """The norm of x + residual, and x + residual itself."""
        total = self._graph.node("Add", [x, residual], f"{out}.sum")
        return self._norm(total, out, gain), total

    def _silu(self, x: str, out: str) -> str:
        gate = self._graph.node("Sigmoid", [x], f"{out}.sigmoid")
        return self._graph.node("Mul", [x, gate], out)

    def _layer_tensor(self, layer: int, name: str) -> NDArray[np.float32]:
        return self._tensor(layer_tensor(layer, name))

    def _tensor(self, name: str) -> NDArray[np.float32]:
        return self._source.tensor(name)
