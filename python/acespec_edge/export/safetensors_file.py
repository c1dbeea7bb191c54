"""Tensors of a safetensors file as float32, bfloat16 included, without loading the file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acespec_edge.errors import UsageError

# Little-endian types by their names in the format. bfloat16 is the upper half of a float32.
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True)
class _Entry:
    kind: str
    shape: tuple[int, ...]
    offset: int  # in the file, bytes


class SafetensorsFile:
    """One safetensors file: an 8-byte length, a JSON header, then the raw tensors.

    Safe to read from several threads. Raises UsageError, naming the file and the tensor, for damage or for a
    number type other than F64, F32, F16, BF16.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._data = np.memmap(path, np.uint8, mode="r")
            length = int.from_bytes(self._data[:8].tobytes(), "little")
            if not 2 <= length <= min(_MAX_HEADER_BYTES, len(self._data) - 8):
                raise ValueError(f"its header has {length} bytes")
            header = json.loads(self._data[8 : 8 + length].tobytes())
            self._entries = {
                name: self._placed(name, entry, 8 + length)
                for name, entry in header.items()
                if name != "__metadata__"
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise UsageError(f"{path}: not a complete safetensors file ({problem})") from problem

    @property
    def names(self) -> set[str]:
        """The tensors in the file."""
        return set(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of tensor `name`, [out, in] for a matrix."""
        return self._entries[name].shape

    def tensor(self, name: str) -> NDArray[np.float32]:
        """A fresh float32 array of tensor `name`. KeyError when absent."""
        entry = self._entries[name]
        raw = np.frombuffer(self._data, np.dtype(_TYPES[entry.kind]), math.prod(entry.shape), entry.offset)
        values: NDArray[np.float32] = raw.astype(np.float32)
        if entry.kind == "BF16":
            values = (raw.astype(np.uint32) << 16).view(np.float32)
        return values.reshape(entry.shape)

    def _placed(self, name: str, entry: dict[str, Any], start: int) -> _Entry:
        kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if kind not in _TYPES:
            raise UsageError(
                f"{self.path}: tensor {name} has type {kind}; {', '.join(_TYPES)} are supported, a quantised "
                "checkpoint is not"
            )
        size = math.prod(shape) * np.dtype(_TYPES[kind]).itemsize
        if min(begin, *shape, 0) < 0 or end - begin != size or start + end > len(self._data):
            raise ValueError(f"tensor {name} does not fit")
        return _Entry(kind, shape, start + begin)
