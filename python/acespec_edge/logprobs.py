"""Log-probabilities as a caller gets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from acespec_edge import _core
from acespec_edge.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that could have come. ``bytes``: the token's own, which may be part of a character."""

    token: int
    bytes: bytes
    logprob: float

    def to_dict(self) -> dict[str, Any]:
        return {"token": self.token, "bytes": list(self.bytes), "logprob": self.logprob}


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A returned token under the plain softmax of the target's logits, before any rule; and the likeliest
    tokens at its place, likeliest first, whether or not the rules let them come.
    """

    token: int
    bytes: bytes
    logprob: float
    top: list[Alternative]

    @classmethod
    def of(cls, token: int, report: _core.TokenLogprob, vocabulary: Vocabulary) -> TokenLogprob:
        """What the cloud reported on ``token``."""
        top = [Alternative(other, vocabulary.token_bytes(other), logprob) for other, logprob in report.top]
        return cls(token, vocabulary.token_bytes(token), report.logprob, top)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; bytes as numbers."""
        return {
            "token": self.token,
            "bytes": list(self.bytes),
            "logprob": self.logprob,
            "top": [other.to_dict() for other in self.top],
        }
