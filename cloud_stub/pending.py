"""A draft on its way through a session: as it arrived, and as it is verified."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PendingDraft:
    """A draft that waits for the work before it. ``arrived``: monotonic seconds."""

    round: int
    base: int
    first_node: int
    tokens: list[int]
    parents: list[int]
    arrived: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """The part of a draft that is being verified; without nodes it is a plain step.

    ``nodes[i]``: index in the draft as sent of the node that is verified as node ``i``.
    """

    round: int
    first_node: int
    tokens: list[int]
    parents: list[int]
    nodes: list[int] = field(default_factory=list)

    def wire_number(self, node: int) -> int:
        """What the wire calls verified node ``node``."""
        return self.first_node + self.nodes[node]
