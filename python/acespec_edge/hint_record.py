"""What became of the cloud's hints."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from acespec_edge.track_record import ChainRecord

_RIGHT: Final = 0.7
"""Share of a hint's tokens, of those whose predecessors were right, that are thought right beforehand."""

_VAIN: Final = 8
"""Hints asked for in vain after which no more is asked for."""


class HintRecord:
    """How far hints were right, and whether they come at all. Not thread-safe; O(tokens of a hint)."""

    def __init__(self) -> None:
        self._right = ChainRecord()
        self._in_vain = 0
        """Hints asked for since the last one came."""

    @property
    def worth_asking(self) -> bool:
        """False for a cloud that has none to give."""
        return self._in_vain < _VAIN

    def asked(self) -> None:
        """A verdict was asked to bring a hint."""
        self._in_vain += 1

    def came(self) -> None:
        """A verdict brought one."""
        self._in_vain = 0

    def followed(self, hint: Sequence[int], committed: Sequence[int]) -> None:
        """Takes what was committed behind a hint, as far as it is known."""
        right = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(hint, committed, strict=False))
        self._right.walked(sum(1 for _ in right), min(len(hint), len(committed)))

    def weights(self, most: int) -> list[float]:
        """Probabilities that the first 1, 2, ... tokens of a hint are all right, ``most`` at most."""
        return self._right.prefixes(_RIGHT)[:most]
