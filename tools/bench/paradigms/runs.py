"""One question put to one contender, and what a person in front of it sees."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Question:
    """A prompt as token ids, and where its answer ends. `seed` keys the noise of sampling."""

    id: str
    ids: list[int]
    tokens: int
    seed: int
    stop_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """One answer. `shown`: seconds from the question to each token. Bytes are payloads of the messages, the
    question included; `max_up_bytes` is the largest message up after it.

    `rounds`: drafts answered, over which `accepted` (tokens a round) and `hit_rate` are means.
    `drafter_forwards`: None where there is no drafter. `target_forwards`: forwards that ruled on tokens,
    filled in by who counts them. `chosen` and `why`: what a policy that chooses says of itself.
    """

    ids: list[int]
    shown: list[float]
    bytes_up: int
    bytes_down: int
    max_up_bytes: int = 0
    rounds: int = 0
    accepted: float = 0.0
    hit_rate: float = 0.0
    drafter_forwards: int | None = None
    target_forwards: int = 0
    chosen: Mapping[str, int] = field(default_factory=dict)
    why: str = ""

    @property
    def seconds(self) -> float:
        """From the question to the last token."""
        return self.shown[-1] if self.shown else 0.0


class Runner(Protocol):
    """Answers questions one at a time, each as if it were the first."""

    def run(self, question: Question, temperature: float) -> Run:
        """Raises LinkError, PeerError or EngineError when the answer does not come to its end."""

    def close(self) -> None:
        """Ends connections; the runner is not used afterwards."""


@dataclass(frozen=True)
class Field:
    """One cell's contenders by label, connected. `lead`: of the target's token at a place of its answer, see
    runners.lead. `forwards`: of the target, so far.
    """

    runners: dict[str, Runner]
    lead: Callable[[Question, int], float]
    forwards: Callable[[], int]


def watched(
    pieces: Iterable[list[int]], started: float, clock: Callable[[], float] = time.monotonic
) -> tuple[list[int], list[float]]:
    """All ids of the pieces, and when each was there; those of one piece come at once."""
    ids: list[int] = []
    shown: list[float] = []
    for piece in pieces:
        at = clock() - started
        ids += piece
        shown += [at] * len(piece)
    return ids, shown
