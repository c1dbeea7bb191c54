"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from typing import Any, Final

from acespec_edge.logprobs import TokenLogprob
from acespec_edge.vocabulary import StreamDecoder, Vocabulary

_IMPOSSIBLE: Final = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The form of chat completions: ``bytes`` are a token's own, also where they are part of a character."""
    content = [
        _entry(entry.bytes, entry.logprob)
        | {"top_logprobs": [_entry(other.bytes, other.logprob) for other in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The form of completions, block by block over one answer. Not thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._decoder = StreamDecoder(vocabulary)
        self._offset = 0

    def block(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """``text_offset`` counts the characters of the answer before the one that the token begins, or goes
        on with."""
        offsets = [self._place(entry) for entry in entries]
        return {
            "tokens": [_name(entry.bytes) for entry in entries],
            "token_logprobs": [_finite(entry.logprob) for entry in entries],
            "top_logprobs": [
                {_name(other.bytes): _finite(other.logprob) for other in entry.top}
                | {_name(entry.bytes): _finite(entry.logprob)}
                for entry in entries
            ],
            "text_offset": offsets,
        }

    def _place(self, entry: TokenLogprob) -> int:
        before = self._offset
        self._offset += len(self._decoder.push([entry.token]))
        if entry.bytes[:1] and entry.bytes[0] & 0xC0 == 0x80:
            return before
        # What was unfinished before a token that begins a character shows with that token, in front of it.
        own = codecs.getincrementaldecoder("utf-8")(errors="replace").decode(entry.bytes)
        return max(before, self._offset - len(own))


def _entry(data: bytes, logprob: float) -> dict[str, Any]:
    return {"token": data.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(data)}


def _name(data: bytes) -> str:
    """A token's text; of one that is part of a character, its bytes as ``bytes:\\xf0\\x9f``."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{value:02x}" for value in data)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _IMPOSSIBLE
