"""Texts that begin alike: what both sides go by when a prompt goes on where an earlier request was."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence
from typing import Final, TypeAlias

from acespec_edge._core import DIGEST_BYTES

MOST_TEXTS: Final = 8
"""Texts that either side keeps of one session, the newest ones."""

Text: TypeAlias = "array[int]"
"""Token ids, four bytes each."""


def text_of(tokens: Sequence[int]) -> Text:
    """The same tokens, ready to be compared."""
    return array("i", tokens)


def common_prefix(one: Text, other: Text) -> int:
    """How many tokens both begin with. O(the shorter one), by comparing memory."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def takes_over(common: int, length: int) -> bool:
    """Whether a request whose prompt has ``common`` tokens in common with a kept text of ``length`` goes on
    in that text's place; otherwise, with more of it to lose than to use, the text is kept beside it.
    """
    return length - common <= common


def digest_of(text: Text) -> bytes:
    """BLAKE2b, cut to 16 bytes by its own parameter, over the ids as 32-bit little-endian integers."""
    if sys.byteorder == "big":
        text = text[:]
        text.byteswap()
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()
