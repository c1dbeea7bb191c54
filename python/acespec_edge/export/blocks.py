"""The products with a decoder's weights, in standard ONNX operators or in ONNX Runtime's own for few bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from acespec_edge.export.ops import CONTRIB, GraphWriter
from acespec_edge.export.quantize import quantize_blocks

Floats = NDArray[np.float32]

_CONTENDERS = 32  # tokens of a row whose logits are computed with the table's own bits
_ACCURACY_INT8 = 4  # MatMulNBits: activations are quantised to int8 per block, products are summed in int32


class Operators(Protocol):
    """The operations that read the large weights: where graphs of floats and of few bits differ.

    Activations are float32 [1, T, width]; every method names its output `out` and returns it.
    """

    def matmul(self, x: str, out: str, weight: Floats, bias: Floats | None = None) -> str:
        """x times the transpose of `weight` [width out, width in], plus `bias` [width out]."""
        ...

    def embed_and_head(self, embed: Floats, head: Floats | None) -> None:
        """Takes the embedding and the head (None: tied), before embed() and head() are called."""
        ...

    def embed(self, ids: str, out: str) -> str:
        """Rows of the embedding: ids int64 [1, T] -> [1, T, hidden]."""
        ...

    def head(self, x: str, out: str) -> str:
        """Logits: [R, hidden] -> [R, logits_width]."""
        ...


class StandardOperators:
    """Float32 weights and standard operators only: runs anywhere, and exact up to rounding."""

    def __init__(self, graph: GraphWriter) -> None:
        self._graph = graph
        self._tied = False

    def matmul(self, x: str, out: str, weight: Floats, bias: Floats | None = None) -> str:
        graph = self._graph
        # MatMul wants [in, out].
        transposed = graph.constant(f"{out}.weight", np.ascontiguousarray(weight.T))
        if bias is None:
            return graph.node("MatMul", [x, transposed], out)
        product = graph.node("MatMul", [x, transposed], f"{out}.product")
        return graph.node("Add", [product, graph.constant(f"{out}.bias", bias)], out)

    def embed_and_head(self, embed: Floats, head: Floats | None) -> None:
        self._tied = head is None
        self._graph.constant("embed.weight", embed)
        if head is not None:
            self._graph.constant("head.weight", head)

    def embed(self, ids: str, out: str) -> str:
        return self._graph.node("Gather", ["embed.weight", ids], out, axis=0)

    def head(self, x: str, out: str) -> str:
        table = "embed.weight" if self._tied else "head.weight"
        return self._graph.node("Gemm", [x, table], out, transB=1)


@dataclass(frozen=True)
class Precision:
    """Bits of the weights by use (4 or 8), and how many of a row share a scale and a zero point."""

    layers: int
    tables: int  # the embedding and the head
    block: int
    coarse: int  # the head's first pass over all tokens
    coarse_block: int  # at most: the largest power of two up to it that divides a row


class CpuOperators:
    """Weights in blocks of few bits, and the operators of ONNX Runtime for them.

    The head is the largest matrix, and of its logits only the best few decide anything. So all tokens get a
    logit from a coarse copy, and the _CONTENDERS best of each row theirs from the table of more bits, of
    which only their rows are read.
    """

    def __init__(self, graph: GraphWriter, precision: Precision) -> None:
        self._graph = graph
        self._precision = precision
        self._hidden = self._width = 0
        self._tables = {"embed": "embed", "head": "head"}  # which constants hold them

    def matmul(self, x: str, out: str, weight: Floats, bias: Floats | None = None) -> str:
        bits, block = self._precision.layers, self._precision.block
        self._constants(out, weight, bits, block)
        return self._product(x, out, out, weight.shape, bits, block, bias)

    def embed_and_head(self, embed: Floats, head: Floats | None) -> None:
        self._width, self._hidden = embed.shape
        precision = self._precision
        bits, block = precision.tables, precision.block
        row = -(-self._hidden // block) * block * bits // 8
        self._constants("embed", embed, bits, block)
        self._graph.reshaped_constant("embed.rows", "embed.codes", (self._width, row))
        if head is None:
            head, self._tables["head"] = embed, "embed"
        else:
            self._constants("head", head, bits, block)
            self._graph.reshaped_constant("head.rows", "head.codes", (self._width, row))
        self._constants("coarse", head, precision.coarse, self._coarse_block())

    def embed(self, ids: str, out: str) -> str:
        return self._rows("embed", ids, out)

    def _rows(self, use: str, ids: str, out: str) -> str:
        precision, table = self._precision, self._tables[use]
        return self._graph.node(
            "GatherBlockQuantized",
            [f"{table}.rows", ids, f"{table}.scales", f"{table}.zeros"],
            out,
            domain=CONTRIB,
            bits=precision.tables,
            block_size=precision.block,
            gather_axis=0,
            quantize_axis=1,
        )

    def head(self, x: str, out: str) -> str:
        graph, precision = self._graph, self._precision
        shape = (self._width, self._hidden)
        coarse = self._product(
            x, f"{out}.coarse", "coarse", shape, precision.coarse, self._coarse_block(), None
        )
        count = graph.ints(min(_CONTENDERS, self._width))
        graph.node("TopK", [coarse, count], [f"{out}.contending", f"{out}.contenders"], axis=-1, sorted=0)
        rows = self._rows("head", f"{out}.contenders", f"{out}.rows")
        column = graph.node("Unsqueeze", [x, graph.ints(2)], f"{out}.column")
        products = graph.node("MatMul", [rows, column], f"{out}.products")
        exact = graph.node("Squeeze", [products, graph.ints(2)], f"{out}.exact")
        return graph.node("ScatterElements", [coarse, f"{out}.contenders", exact], out, axis=1)

    def _coarse_block(self) -> int:
        return max(min(self._precision.coarse_block, self._hidden & -self._hidden), self._precision.block)

    def _constants(self, name: str, weight: Floats, bits: int, block: int) -> None:
        blocks = quantize_blocks(weight, bits, block)
        self._graph.constant(f"{name}.codes", blocks.packed)
        self._graph.constant(f"{name}.scales", blocks.scales)
        self._graph.constant(f"{name}.zeros", blocks.zero_points)

    def _product(
        self,
        x: str,
        out: str,
        name: str,
        shape: tuple[int, ...],
        bits: int,
        block: int,
        bias: Floats | None,
    ) -> str:
        inputs = [x, f"{name}.codes", f"{name}.scales", f"{name}.zeros"]
        if bias is not None:
            inputs += ["", self._graph.constant(f"{name}.bias", bias)]
        return self._graph.node(
            "MatMulNBits",
            inputs,
            out,
            domain=CONTRIB,
            K=shape[1],
            N=shape[0],
            bits=bits,
            block_size=block,
            accuracy_level=_ACCURACY_INT8,
        )
