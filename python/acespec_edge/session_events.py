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
    """The sequence grew by ``tokens``, the first ``accepted`` of them nodes that were in flight, which the
    target verified ``nodes`` of (0: a plain step). ``logprobs``: when asked for, one for each token, behind
    one for what the draft resampled. ``sparse``: the token after them was rejected; this side draws another
    and names it in the next draft.

    ``hint``: what the cloud thinks that follows; nothing of it is committed.

    ``answered``: it answers a draft, or the Open, that no verdict has answered before; of the newest such,
    ``bytes_up`` are the bytes and ``round_trip`` the seconds there and back, without the cloud's ``queue``
    and ``verify`` (``None`` when it answers none). ``rough``: that was the Open. ``bytes_down``: of the
    verdict. ``reused``: prompt tokens that the cloud had not to read, told by the first verdict.
    """

    tokens: list[int]
    accepted: int
    finish: _core.Finish
    at: float
    logprobs: list[_core.TokenLogprob] = field(default_factory=list)
    sparse: _core.SparseRow | None = None
    round_trip: float | None = None
    rough: bool = False
    bytes_up: int = 0
    bytes_down: int = 0
    verify: float = 0.0
    queue: float = 0.0
    nodes: int = 0
    answered: bool = False
    reused: int = 0
    hint: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Repeated:
    """The cloud does not keep what the request builds upon: these messages are to be sent, which say it
    anew.
    """

    frames: list[bytes]


Event = Welcomed | Committed | Repeated
