"""What an edge's session makes of the messages that arrive."""

from __future__ import annotations

from dataclasses import dataclass, field

from acespec_edge import _core


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The cloud took the session."""

    welcome: _core.Welcome


@dataclass(frozen=True, slots=True)
class Committed:
    """The sequence grew by ``tokens``, the first ``accepted`` of them out of the draft that was in
    flight. ``logprobs``: when asked for, one for each of them, behind one for what the draft resampled.
    ``sparse``: the token after them was rejected; this side draws another and names it in the next draft.
    """

    tokens: list[int]
    accepted: int
    finish: _core.Finish
    at: float
    logprobs: list[_core.TokenLogprob] = field(default_factory=list)
    sparse: _core.SparseRow | None = None


Event = Welcomed | Committed
