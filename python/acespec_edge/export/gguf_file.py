"""A GGUF file: its metadata, and its tensors dequantised one at a time."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from acespec_edge.errors import UsageError

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
# Value types of the format: struct codes of the scalars by number, then the two that are not scalars.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies. `shape` is in row-major order ([out, in] for a matrix), offsets and sizes in
    bytes."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    size: int


class GgufFile:
    """A memory-mapped GGUF file, little-endian, version 2 or 3.

    Raises UsageError, naming the file, for anything that is not one. `metadata` holds plain Python values.
    The mapping lives as long as the object; `tensor` returns fresh arrays. Safe to read from several threads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as problem:
            raise UsageError(f"{path}: cannot read the file ({problem})") from problem
        cursor = _Cursor(self._data)
        try:
            tensor_count, value_count = self._read_start(cursor)
            self.metadata: dict[str, Any] = {}
            for _ in range(value_count):
                key = cursor.text()
                self.metadata[key] = cursor.value(cursor.number("I"))
            raw = [self._read_entry(cursor) for _ in range(tensor_count)]
        except (struct.error, UnicodeDecodeError, KeyError, ValueError, RecursionError) as problem:
            raise UsageError(f"{path}: the GGUF file is damaged or cut off ({problem!r})") from problem
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        start = -(-cursor.at // alignment) * alignment
        self.tensors = {
            name: self._placed(name, start, shape, number, offset) for name, shape, number, offset in raw
        }
        for kind in {entry.kind for entry in self.tensors.values()}:
            self._check_kind(kind)

    def tensor(self, name: str, rows: int | None = None) -> NDArray[np.float32]:
        """The tensor called `name` in the file, or its first `rows`, float32, row-major ([out, in] for a
        matrix). KeyError when absent."""
        entry = self.tensors[name]
        shape, size = entry.shape, entry.size
        if rows is not None:
            shape = (min(rows, shape[0]), *shape[1:])
            size = size // entry.shape[0] * shape[0]
        flat = np.frombuffer(self._data, np.uint8, size, entry.offset)
        if entry.kind == GGMLQuantizationType.F32:
            values = flat.view("<f4").astype(np.float32)
        elif entry.kind == GGMLQuantizationType.F16:
            values = flat.view("<f2").astype(np.float32)
        else:
            values = dequantize(flat, entry.kind)
        return np.ascontiguousarray(values.reshape(shape), dtype=np.float32)

    def _read_start(self, cursor: _Cursor) -> tuple[int, int]:
        if self._data[:4] != b"GGUF":
            raise UsageError(f"{self.path}: not a GGUF file, it begins with {self._data[:4]!r}")
        cursor.at = 4
        version = cursor.number("I")
        if version not in _VERSIONS:
            raise UsageError(
                f"{self.path}: GGUF version {version} is not supported, only little-endian 2 and 3"
            )
        return cursor.number("Q"), cursor.number("Q")

    def _read_entry(self, cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
        name = cursor.text()
        dimensions = tuple(cursor.number("Q") for _ in range(cursor.number("I")))
        return name, tuple(reversed(dimensions)), cursor.number("I"), cursor.number("Q")

    def _placed(self, name: str, start: int, shape: tuple[int, ...], number: int, offset: int) -> TensorEntry:
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise UsageError(f"{self.path}: tensor {name} has the unknown type number {number}") from None
        block, block_bytes = GGML_QUANT_SIZES[kind]
        count = math.prod(shape)
        size = count // block * block_bytes
        if count % block or start + offset + size > len(self._data):
            raise UsageError(f"{self.path}: the GGUF file is damaged or cut off (tensor {name} does not fit)")
        return TensorEntry(kind, shape, start + offset, size)

    def _check_kind(self, kind: GGMLQuantizationType) -> None:
        if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
            return
        try:
            dequantize(np.zeros(GGML_QUANT_SIZES[kind][1], np.uint8), kind)
        except NotImplementedError as problem:
            raise UsageError(
                f"{self.path}: tensor type {kind.name} is not supported; F32, F16, BF16, Q4_0 to Q8_0, "
                "Q2_K to Q6_K and IQ types are. Convert the model to one of these"
            ) from problem


class _Cursor:
    """Reads values one after another. Raises struct.error or ValueError past the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = 0

    def number(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        (value,) = layout.unpack_from(self._data, self.at)
        self.at += layout.size
        return value

    def text(self) -> str:
        end = self.number("Q") + self.at
        if end > len(self._data):
            raise ValueError(f"a string at {self.at} ends behind the file")
        raw = self._data[self.at : end]
        self.at = end
        return raw.decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_SCALARS[kind])
        item, count = self.number("I"), self.number("Q")
        if count > len(self._data) - self.at:
            raise ValueError(f"an array at {self.at} ends behind the file")
        if item in _SCALARS:
            layout = struct.Struct(f"<{count}{_SCALARS[item]}")
            values = layout.unpack_from(self._data, self.at)
            self.at += layout.size
            return list(values)
        read: Callable[[], Any] = self.text if item == _STRING else lambda: self.value(item)
        return [read() for _ in range(count)]
