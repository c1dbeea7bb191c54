"""What a session wants done. It does none of it itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from acespec_edge._core import Finish
from cloud_stub.judge import Terms

Message = Any
"""One of the message classes of ``_core``."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``message`` to the edge."""

    message: Message


@dataclass(frozen=True, slots=True)
class Start:
    """Open a handle for ``ticket``, prefill ``prompt``, rule on the first token; report with the ticket."""

    ticket: int
    prompt: list[int]
    terms: Terms
    arrived: float


@dataclass(frozen=True, slots=True)
class Verify:
    """Verify a tree below ``tip`` and rule on it; ``base``: committed length, tip included; ``hint``: say how
    the text may go on.

    Residual mode: ``weights`` of the tokens; ``resampled``: the tip, when the edge has drawn it; ``finish``:
    that token has ended the request, and there is nothing to verify.
    """

    ticket: int
    base: int
    tip: int
    tokens: list[int]
    parents: list[int]
    arrived: float
    weights: list[int] = field(default_factory=list)
    resampled: int | None = None
    finish: Finish = Finish.none
    hint: bool = False


@dataclass(frozen=True, slots=True)
class MoreTail:
    """Send the row that waits for the edge's token again, with other samples of its tail."""

    ticket: int
    arrived: float


@dataclass(frozen=True, slots=True)
class Release:
    """Drop the work of ``ticket``. ``text``: what was committed, whose KV may be of use again; None when
    nothing of it is to be kept.
    """

    ticket: int
    text: list[int] | None = None


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the connection once everything sent before is out."""

    reason: str


Action = Send | Start | Verify | MoreTail | Release | HangUp
