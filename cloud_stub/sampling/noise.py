"""The coupled noise in PyTorch: the words of ``_core.gumbel_words``, bit for bit (docs/protocol.md, "Coupled
noise").

PyTorch has no unsigned arithmetic to speak of. Words are int64 in [0, 2^32); a product of two of them wraps
around 2^64, which leaves both its halves right once the upper one is masked.
"""

from __future__ import annotations

from typing import Final

import torch

_LANES: Final = 4
_LANE: Final = 64
"""Tokens are numbered in tiles of 4 lanes of 64: word k of a tile's i-th block is its token 64 k + i."""

_WORD: Final = 0xFFFFFFFF
_STREAM: Final = 0x41636553
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)


def gumbel_words(seed: int, position: int, count: int, device: torch.device) -> torch.Tensor:
    """The noise words of tokens 0 to ``count - 1``, int64 [count]."""
    tiles = -(-count // (_LANES * _LANE))
    blocks = torch.arange(tiles * _LANE, dtype=torch.int64, device=device)
    zero = torch.zeros_like(blocks)
    words = _philox((zero + position, blocks, zero, zero + _STREAM), (seed & _WORD, seed >> 32))
    return torch.stack(words).view(_LANES, tiles, _LANE).transpose(0, 1).reshape(-1)[:count]


def gumbel(words: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel variates, float64: ``-ln(-ln U)`` with ``U = (word + 0.5) / 2^32``."""
    return -torch.log(-torch.log((words.double() + 0.5) * 2.0**-32))


_Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _philox(counter: _Words, key: tuple[int, int]) -> _Words:
    """Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), counter by
    counter.
    """
    w0, w1, w2, w3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = w0 * _MULTIPLIERS[0], w2 * _MULTIPLIERS[1]
        w0, w1 = (b >> 32 & _WORD) ^ w1 ^ k0, b & _WORD
        w2, w3 = (a >> 32 & _WORD) ^ w3 ^ k1, a & _WORD
        k0, k1 = k0 + _WEYL[0] & _WORD, k1 + _WEYL[1] & _WORD
    return w0, w1, w2, w3
