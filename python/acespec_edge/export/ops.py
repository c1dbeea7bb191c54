"""A small ONNX graph writer: nodes by name, small constants inline, large ones in one external file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

OPSET = 23
GPU_OPSET = 21  # the first with weights of 4 bits in blocks
IR_VERSION = 11  # the newest that runtime 1.23 reads
CONTRIB = "com.microsoft"

_ALIGNMENT = 4096  # external tensors start on page borders, so that a runtime may map them
_INLINE_BYTES = 1024
_TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.uint8): TensorProto.UINT8,
}


class WeightFile:
    """Appends tensors to one external data file beside the model. Not thread safe; close() ends it."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._file: BinaryIO = path.open("wb")
        self._offset = 0

    def append(self, array: NDArray[Any]) -> tuple[int, int]:
        """Writes an array, C order and little endian; returns its offset and length in bytes."""
        padding = -self._offset % _ALIGNMENT
        self._file.write(b"\0" * padding)
        offset = self._offset + padding
        data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        self._file.write(data.data)
        self._offset = offset + data.nbytes
        return offset, data.nbytes

    def close(self) -> None:
        self._file.close()


class GraphWriter:
    """Collects nodes, inputs, outputs and constants of one graph; `model()` returns the whole."""

    def __init__(self, weights: WeightFile, opset: int = OPSET) -> None:
        self._opset = opset
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, dtype: int, shape: Sequence[int | str]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, dtype: int, shape: Sequence[int | str]) -> None:
        self._outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """A constant of the graph; the same name twice gives the first one back."""
        if name in self._constants:
            return name
        if array.nbytes <= _INLINE_BYTES:
            tensor = helper.make_tensor(name, _TYPES[array.dtype], array.shape, array.tobytes(), raw=True)
        else:
            tensor = TensorProto(name=name, data_type=_TYPES[array.dtype], data_location=TensorProto.EXTERNAL)
            tensor.dims.extend(array.shape)
            self._external(tensor, array)
        self._constants[name] = tensor
        return name

    def _external(self, tensor: TensorProto, array: NDArray[Any]) -> None:
        offset, length = self._weights.append(array)
        for key, value in (("location", self._weights.name), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))

    def reshaped_constant(self, name: str, other: str, shape: Sequence[int]) -> str:
        """A constant made of the very bytes of the constant `other`, under another shape."""
        tensor = TensorProto()
        tensor.CopyFrom(self._constants[other])
        tensor.name = name
        tensor.dims[:] = shape
        self._constants[name] = tensor
        return name

    def nibbles(self, name: str, codes: NDArray[np.int8]) -> str:
        """A constant of int4: `codes` from -8 to 7, two to a byte, the first in its low half."""
        flat = (codes.reshape(-1) & 15).astype(np.uint8)
        flat = np.pad(flat, (0, flat.size % 2))
        tensor = TensorProto(name=name, data_type=TensorProto.INT4, data_location=TensorProto.EXTERNAL)
        tensor.dims.extend(codes.shape)
        self._external(tensor, flat[0::2] | (flat[1::2] << 4))
        self._constants[name] = tensor
        return name

    def ints(self, *values: int) -> str:
        """An int64 vector constant (axes, shapes, sizes), shared by all who ask for the same values."""
        return self.constant("ints." + "_".join(map(str, values)), np.array(values, np.int64))

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: str | Sequence[str],
        *,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Adds a node named after its first output and returns that output. Empty names mean absent."""
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        first = next(name for name in names if name)
        self._nodes.append(helper.make_node(op, inputs, names, name=first, domain=domain, **attributes))
        return first

    def model(self, name: str) -> onnx.ModelProto:
        """The finished model, less constants that no node reads; `name` is only for readers."""
        read = {entry for node in self._nodes for entry in node.input}
        constants = [tensor for tensor in self._constants.values() if tensor.name in read]
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, constants)
        domains = [helper.make_opsetid("", self._opset)]
        if any(node.domain == CONTRIB for node in self._nodes):
            domains.append(helper.make_opsetid(CONTRIB, 1))
        return helper.make_model(
            graph, opset_imports=domains, ir_version=IR_VERSION, producer_name="acespec-edge"
        )
