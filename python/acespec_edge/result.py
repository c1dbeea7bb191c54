"""What a generation gives back."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from acespec_edge.logprobs import TokenLogprob
from acespec_edge.stats import Stats

FinishReason = Literal["stop", "length", "context", "cancelled", "error"]
Origin = Literal["target", "edge"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one verdict of the target (or one step of the drafter alone) added.

    ``text`` may be empty while a character or a possible stop string is incomplete; ``token_ids`` may be
    empty when held text is let go at the end. ``origin`` is "target" when the target chose every token,
    "edge" when the drafter did, by itself or while there was no cloud. ``at``: seconds since the request was
    made. ``logprobs``: one for each of ``token_ids``, when asked for.
    """

    text: str
    token_ids: list[int]
    origin: Origin
    at: float
    logprobs: list[TokenLogprob] | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens counted: ``completion_tokens`` is exactly the number of ids returned; ``cached_tokens``, of the
    prompt, are those whose keys and values whoever answered had from an earlier request; ``edge_tokens``, of
    the output, are those that the drafter chose.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    edge_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def to_dict(self) -> dict[str, Any]:
        """As OpenAI has it; the details are there when there is something to them."""
        details = {"prompt_tokens_details": {"cached_tokens": self.cached_tokens}}
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
            **(details if self.cached_tokens else {}),
        }


@dataclass(frozen=True, slots=True)
class Result:
    """A whole generation.

    ``token_ids`` ends with the token that ended it: the end-of-sequence id, whose text is not shown, or the
    token that completed a stop string, which ``text`` is cut before. ``finish_reason``: "stop", "length"
    (``max_tokens``), "context" (no room left), "cancelled" (by the caller), "error" (only in what an error
    left behind). ``logprobs``: one for each of ``token_ids``, when asked for. ``earlier_ids``: the output
    that this one went on with (``continue_from``), which counts as prompt here. ``origins``: who chose the
    tokens, in runs of one origin and their lengths, which add up to ``token_ids``.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    usage: Usage
    stats: Stats
    logprobs: list[TokenLogprob] | None = None
    earlier_ids: list[int] = field(default_factory=list)
    origins: list[tuple[Origin, int]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "usage": self.usage.to_dict(),
            "logprobs": None if self.logprobs is None else [entry.to_dict() for entry in self.logprobs],
            "origins": [list(run) for run in self.origins],
            "stats": dataclasses.asdict(self.stats),
        }
