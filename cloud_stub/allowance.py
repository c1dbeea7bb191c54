"""How many nodes of its own the cloud may verify in a plain step of one request."""

from __future__ import annotations

from typing import Final

_KEPT: Final = 0.995
"""What a step leaves of the weight of those before."""

_PRIOR: Final = 4.0
"""Tries that what is believed beforehand counts for."""

_ACCEPTED: Final = 0.7
"""Probability, believed beforehand, that a node is accepted whose parent is."""


class Allowance:
    """Bounds what self-continuation may spend, by two rules that have one price, ``per_token``: the nodes
    that a token is worth.

    At the margin: a node is verified only while it is expected to be accepted with a probability of at least
    1 / ``per_token``. What is known of each place fades with every step, also of places that were not tried,
    so that these are tried again now and then. In all: over any stretch of steps from the first, at most
    ``longest + per_token * (committed tokens)`` nodes are verified, whatever the estimates say. Not
    thread-safe; O(longest) a step.
    """

    def __init__(self, per_token: float, longest: int) -> None:
        """``per_token``: 0 for none. ``longest``: nodes of one step at most."""
        self._per_token = per_token
        self._longest = longest
        self._credit = float(longest)
        self._tried = [0.0] * longest
        self._taken = [0.0] * longest

    @property
    def least(self) -> float:
        """The lowest probability of being accepted that is worth a node."""
        return 1.0 / self._per_token if self._per_token > 0 else float("inf")

    def nodes(self) -> int:
        """How many the next step may verify."""
        survival, affordable = 1.0, int(self._credit)
        for place, (tried, taken) in enumerate(zip(self._tried, self._taken, strict=True)):
            survival *= (taken + _PRIOR * _ACCEPTED) / (tried + _PRIOR)
            if place >= affordable or survival < self.least:
                return place
        return self._longest

    def pay(self, tokens: int) -> None:
        """Takes that ``tokens`` tokens were committed."""
        self._credit += self._per_token * tokens

    def charge(self, nodes: int) -> None:
        """Takes that ``nodes`` nodes were drafted."""
        self._credit -= nodes

    def spent(self, nodes: int, accepted: int, committed: int) -> None:
        """Takes that a step verified ``nodes`` nodes, accepted the first ``accepted`` of them, and committed
        ``committed`` tokens.
        """
        self.pay(committed)
        self.charge(nodes)
        for place in range(self._longest):
            self._tried[place] *= _KEPT
            self._taken[place] *= _KEPT
            # A place is tried when the one before it was accepted.
            if place < nodes and place <= accepted:
                self._tried[place] += 1
                self._taken[place] += place < accepted
