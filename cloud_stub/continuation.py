"""How the cloud goes on by itself: a plain step that verifies what it has drafted for itself; or a hint, of
what it would draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acespec_edge._core import SamplingRules
from acespec_edge.errors import UsageError
from cloud_stub.allowance import Allowance
from cloud_stub.verifiers.base import Handle, Proposer


@dataclass(frozen=True, slots=True)
class SelfDrafting:
    """What a service's requests share of it. ``per_token``: nodes of its own that the cloud verifies for each
    token it commits by itself, at most. Raises UsageError for one that cannot be.
    """

    proposer: Proposer
    per_token: float = 4.0

    def __post_init__(self) -> None:
        if not 0 <= self.per_token <= 256:
            raise UsageError(f"per_token is {self.per_token:g}: nodes of 0 to 256 would be right")


class Continuation:
    """Of one request. Used by one thread at a time, the scheduler's."""

    def __init__(self, shared: SelfDrafting, rules: SamplingRules, max_nodes: int) -> None:
        """``max_nodes``: of a step, its own choice not counted."""
        self._proposer = shared.proposer
        self._rules = rules
        self._allowance = Allowance(shared.per_token, max(0, min(shared.proposer.longest, max_nodes)))

    def draft(self, handle: Handle, tip: int, position: int, room: int) -> list[int]:
        """A chain below ``tip``, its first token at absolute ``position``, of at most ``room`` tokens; empty
        when none is worth verifying.
        """
        count = min(room, self._allowance.nodes())
        if count <= 0:
            return []
        least = self._allowance.least
        return self._proposer.propose(handle, tip, position, self._rules, count, least)[:count]

    def hint(self, handle: Handle, tip: int, position: int, room: int, committed: int) -> list[int]:
        """As draft(), for the edge to send back: the nodes come out of the same allowance, into which the
        ``committed`` tokens of the verification before are paid.
        """
        self._allowance.pay(committed)
        tokens = self.draft(handle, tip, position, room)
        self._allowance.charge(len(tokens))
        return tokens

    def judged(self, drafted: Sequence[int], accepted: int) -> None:
        """Takes that a step, which verified ``drafted``, accepted the first ``accepted`` of it, and committed
        one token more.
        """
        self._allowance.spent(len(drafted), accepted, accepted + 1)
