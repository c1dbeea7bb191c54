"""The products of a graph for GPUs: float16, or weights of few bits that standard operators make float16."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from acespec_edge.export.ops import GraphWriter
from acespec_edge.export.quantize import quantize_symmetric

Floats = NDArray[np.float32]

_BLOCK = 64  # inputs of a product that share a scale, for 4 bits


class GpuOperators:
    """Products in float16 between float32 rows. Weights of 4 bits have a scale for every 64 inputs of an
    output, those of 8 bits one for each output, and no zero points: TensorRT takes none. The embedding and
    the head are float16."""

    def __init__(self, graph: GraphWriter, bits: int) -> None:
        self._graph = graph
        self._bits = bits
        self._tied = False

    def matmul(self, x: str, out: str, weight: Floats, bias: Floats | None = None) -> str:
        graph = self._graph
        half = graph.node("Cast", [x], f"{out}.half", to=TensorProto.FLOAT16)
        product = graph.node("MatMul", [half, self._weight(out, weight)], f"{out}.product")
        if bias is None:
            return graph.node("Cast", [product], out, to=TensorProto.FLOAT)
        wide = graph.node("Cast", [product], f"{out}.wide", to=TensorProto.FLOAT)
        return graph.node("Add", [wide, graph.constant(f"{out}.bias", bias)], out)

    def embed_and_head(self, embed: Floats, head: Floats | None) -> None:
        self._tied = head is None
        self._graph.constant("embed.weight", embed.astype(np.float16))
        if head is not None:
            self._graph.constant("head.weight", head.astype(np.float16))

    def embed(self, ids: str, out: str) -> str:
        rows = self._graph.node("Gather", ["embed.weight", ids], f"{out}.half", axis=0)
        return self._graph.node("Cast", [rows], out, to=TensorProto.FLOAT)

    def head(self, x: str, out: str) -> str:
        graph = self._graph
        table = "embed.weight" if self._tied else "head.weight"
        half = graph.node("Cast", [x], f"{out}.half", to=TensorProto.FLOAT16)
        product = graph.node("Gemm", [half, table], f"{out}.product", transB=1)
        return graph.node("Cast", [product], out, to=TensorProto.FLOAT)

    def _weight(self, out: str, weight: Floats) -> str:
        """Float16 [in, out] from what is stored."""
        graph, name = self._graph, f"{out}.weight"
        if self._bits == 16:
            return graph.constant(name, np.ascontiguousarray(weight.T).astype(np.float16))
        if self._bits == 8:
            codes, scales = quantize_symmetric(weight, 8, weight.shape[1])
            stored = graph.constant(f"{name}.codes", np.ascontiguousarray(codes.T))
            scale = graph.constant(f"{name}.scales", scales[:, 0].astype(np.float16))
            return graph.node("DequantizeLinear", [stored, scale], name, axis=1)
        codes, scales = quantize_symmetric(weight, 4, _BLOCK)
        stored = graph.nibbles(f"{name}.codes", np.ascontiguousarray(codes.T))
        scale = graph.constant(f"{name}.scales", np.ascontiguousarray(scales.T).astype(np.float16))
        return graph.node("DequantizeLinear", [stored, scale], name, axis=0, block_size=_BLOCK)
