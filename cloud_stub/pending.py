"""A draft on its way through a session: as it arrived, and as it is verified."""

from __future__ import annotations

from dataclasses import dataclass, field

from acespec_edge._core import Finish


@dataclass(frozen=True, slots=True)
class PendingDraft:
    """A draft that waits for the work before it. ``arrived``: monotonic seconds.

    Residual mode: ``weights`` of its tokens, the token ``resampled``, and whether it asks for ``more_tail``.
    """

    round: int
    base: int
    first_node: int
    tokens: list[int]
    parents: list[int]
    arrived: float
    weights: list[int] = field(default_factory=list)
    resampled: int | None = None
    more_tail: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """The part of a draft that is being verified; without nodes it is a plain step.

    ``nodes[i]``: index in the draft as sent of the node that is verified as node ``i``. ``finish``: when the
    token ``resampled`` has ended the request already. The rest as of ``PendingDraft``.
    """

    round: int
    first_node: int
    tokens: list[int]
    parents: list[int]
    nodes: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    resampled: int | None = None
    more_tail: bool = False
    finish: Finish = Finish.none

    def wire_number(self, node: int) -> int:
        """What the wire calls verified node ``node``."""
        return self.first_node + self.nodes[node]
