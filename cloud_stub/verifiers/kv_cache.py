"""The KV of one request: buffers that grow by doubling, appended to in place, compacted at the tail only."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_FIRST_CAPACITY = 256


class TailLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer, ``[1, heads, capacity, head_dim]``; the first ``length`` rows are in
    use.

    Appending writes in place and hands out views of the used part. ``keep`` moves rows of the tail only.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length = 0
        self.device = torch.device("cpu")
        self._key_buffer: torch.Tensor | None = None
        self._value_buffer: torch.Tensor | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Called by ``update`` with the first states: their shape, type and device are the buffers'."""
        self.device = key_states.device
        self._key_buffer = _grown(None, key_states, _FIRST_CAPACITY)
        self._value_buffer = _grown(None, value_states, _FIRST_CAPACITY)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends ``[1, heads, new, head_dim]``; returns all keys and values in use, as views."""
        if self._key_buffer is None or self._value_buffer is None:
            self.lazy_initialization(key_states, value_states)
        assert self._key_buffer is not None and self._value_buffer is not None
        end = self.length + key_states.shape[-2]
        capacity = self._key_buffer.shape[-2]
        if end > capacity:
            capacity = max(2 * capacity, end)
            self._key_buffer = _grown(self._key_buffer, key_states, capacity)
            self._value_buffer = _grown(self._value_buffer, value_states, capacity)
        self._key_buffer[:, :, self.length : end] = key_states
        self._value_buffer[:, :, self.length : end] = value_states
        self.length = end
        self.keys = self._key_buffer[:, :, :end]
        self.values = self._value_buffer[:, :, :end]
        return self.keys, self.values

    def keep(self, start: int, rows: torch.Tensor | None, count: int) -> None:
        """Keeps rows ``0..start-1`` and then ``count`` rows: those in ``rows`` (absolute, ascending), or,
        when it is None, the ones that already follow.
        """
        if self._key_buffer is None or self._value_buffer is None:
            return
        end = start + count
        if rows is not None:
            self._key_buffer[:, :, start:end] = self._key_buffer.index_select(2, rows)
            self._value_buffer[:, :, start:end] = self._value_buffer.index_select(2, rows)
        self.length = end

    def fill(self, other: TailLayer, length: int) -> None:
        """Appends copies of the first ``length`` rows of another layer."""
        if other._key_buffer is not None and other._value_buffer is not None:
            self.update(other._key_buffer[:, :, :length], other._value_buffer[:, :, :length])

    def get_seq_length(self) -> int:
        """Rows in use."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Key length and offset of the mask for ``query_length`` new tokens."""
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        """No limit of its own."""
        return -1


class TailCache(Cache):
    """One ``TailLayer`` per layer of the model, moved together."""

    def __init__(self, layers: int) -> None:
        self.tails = [TailLayer() for _ in range(layers)]
        super().__init__(layers=[*self.tails])

    @property
    def length(self) -> int:
        """Tokens whose KV is held."""
        return self.tails[0].length

    @torch.inference_mode()
    def copy(self, length: int) -> TailCache:
        """Another cache with the first ``length`` tokens of this one, in memory of its own."""
        other = TailCache(len(self.tails))
        for mine, theirs in zip(self.tails, other.tails, strict=True):
            theirs.fill(mine, length)
        return other

    @torch.inference_mode()
    def keep(self, start: int, path: list[int]) -> None:
        """Keeps the first ``start`` tokens and then those at ``start + path[0]``, ``start + path[1]``, ...

        ``path`` is ascending. When it is 0, 1, 2, ... nothing moves at all.
        """
        rows: torch.Tensor | None = None
        if path != list(range(len(path))):
            absolute = [start + node for node in path]
            rows = torch.tensor(absolute, dtype=torch.long, device=self.tails[0].device)
        for layer in self.tails:
            layer.keep(start, rows, len(path))


def _grown(buffer: torch.Tensor | None, states: torch.Tensor, capacity: int) -> torch.Tensor:
    """A buffer of ``capacity`` rows with the contents of ``buffer``, shaped for ``states``."""
    batch, heads, new, width = states.shape
    grown = states.new_empty((batch, heads, max(capacity, new), width))
    if buffer is not None:
        grown[:, :, : buffer.shape[-2]] = buffer
    return grown
