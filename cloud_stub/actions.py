"""What a session wants done. It does none of it itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    """Verify a tree below ``tip`` and rule on it; ``base``: committed length, tip included."""

    ticket: int
    base: int
    tip: int
    tokens: list[int]
    parents: list[int]
    arrived: float


@dataclass(frozen=True, slots=True)
class Release:
    """Drop the work and the handle of ``ticket``."""

    ticket: int


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the connection once everything sent before is out."""

    reason: str


Action = Send | Start | Verify | Release | HangUp
