"""Prompts in fewer bytes: a Zstandard frame of token ids (RFC 8878)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import zstandard

from acespec_edge import _core
from acespec_edge.errors import PeerError

_LEVEL: Final = 9
_LARGEST: Final = (1 << 24) - 1
_BYTES: Final = 3
_WINDOW: Final = 1 << 23
"""Bytes of memory that a frame may ask for besides its contents."""


def compress(tokens: Sequence[int]) -> bytes | None:
    """The low 16 bits of every id, then the next 8 of every id, little-endian, as a frame that tells its
    size; None where that is not smaller than the packed ids, or an id has more bits.

    The low halves repeat wherever the text does, and the high bytes of a vocabulary under 2**16 are all 0.
    """
    ids = np.asarray(tokens, "<u4")
    if not ids.size or (largest := int(ids.max())) > _LARGEST:
        return None
    columns = ids.view(np.uint8).reshape(-1, 4)
    plain = columns[:, :2].tobytes() + columns[:, 2].tobytes()
    frame = zstandard.ZstdCompressor(level=_LEVEL).compress(plain)
    return frame if len(frame) < ids.size * (2 if largest < 1 << 16 else _BYTES) else None


def said_prompt(message: _core.Open, most: int) -> list[int]:
    """What an Open says of its prompt, in either form: ``most`` ids at most. Raises PeerError as ``expand``
    does.
    """
    return expand(message.prompt_zstd, most) if message.prompt_zstd else message.prompt


def expand(frame: bytes, most: int) -> list[int]:
    """The ids, ``most`` at most. Raises PeerError for a frame that is damaged, holds more, or does not tell
    how much it holds; nothing is allocated before that is known.
    """
    try:
        size = zstandard.get_frame_parameters(frame).content_size
    except zstandard.ZstdError as error:
        raise PeerError(f"Open.prompt_zstd is not a Zstandard frame: {error}") from error
    if size == zstandard.CONTENTSIZE_UNKNOWN or not 0 < size <= _BYTES * most or size % _BYTES:
        told = "no size" if size == zstandard.CONTENTSIZE_UNKNOWN else f"{size} bytes"
        raise PeerError(
            f"Open.prompt_zstd says it holds {told}: {_BYTES} for each of 1 to {most} ids would be right"
        )
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    try:
        plain = decompressor.decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise PeerError(f"Open.prompt_zstd cannot be read: {error}") from error
    if len(plain) != size:
        raise PeerError(f"Open.prompt_zstd holds {len(plain)} bytes and says {size}")
    count = size // _BYTES
    low = np.frombuffer(plain, "<u2", count).astype(np.int64)
    high = np.frombuffer(plain, np.uint8, count, 2 * count)
    ids: list[int] = (low | high.astype(np.int64) << 16).tolist()
    return ids
