"""What of a request's drafts waits for the model, and what the model is given of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from acespec_edge._core import Finish


@dataclass(frozen=True, slots=True)
class PendingDraft:
    """A draft that came while the model was at work. ``round``: not wrapped; ``asks``: the committed length
    at which it wants a plain step, of a draft without nodes.
    """

    round: int
    asks: int | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is being verified: all nodes below the last committed token, none for a plain step. ``round``:
    of the newest draft received when it began, not wrapped.

    ``nodes``: their numbers on the wire; ``parents``: indices; ``hint``: the newest draft wants one. Residual
    mode: ``weights`` of the tokens, the token ``resampled``, whether only ``more_tail`` is asked for, and
    ``finish``: when ``resampled`` has ended the request already.
    """

    round: int
    nodes: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    resampled: int | None = None
    more_tail: bool = False
    finish: Finish = Finish.none
    hint: bool = False
