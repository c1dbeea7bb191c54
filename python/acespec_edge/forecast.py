"""Tokens a second to be expected of chains of drafts, from what their parts take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from acespec_edge.track_record import LONGEST


@dataclass(frozen=True, slots=True)
class Forecast:
    """``acceptance``: the share of drafted tokens that the target takes, of those whose predecessors it took;
    ``hit``: how often a verdict leads to a node that is drafted already. Seconds: ``forward``, of the
    drafter; ``away``, from a verdict to the draft that answers it, on the network; ``step``, above 0, of the
    target alone, which yields ``per_step`` tokens; ``verify``, above 0, of verifications of 0 to ``LONGEST``
    nodes, their bytes included.
    """

    acceptance: float
    hit: float
    forward: float
    away: float
    step: float
    per_step: float
    verify: Sequence[float]

    def waited_for(self) -> float:
        """Where the cloud waits for drafts: drafting fills the wait, and a miss costs a forward."""
        missing = (1 - self.hit) * self.forward
        round_ = self.away + self.verify[0]
        return self.chain(lambda length: max(0.0, self.forward * length - round_) + missing)

    def joining(self) -> float:
        """Where it goes on by itself: it has taken some steps when a draft arrives, which is of use if it
        foretold what they said, by what reaches past that.
        """
        steps = math.ceil((self.away + (1 - self.hit) * self.forward) / self.step)
        overtaken = steps * self.per_step
        fits = self.acceptance**overtaken
        best, tokens, power = 0.0, 1.0, 1.0
        for length in range(1, LONGEST + 1):
            power *= self.acceptance
            tokens += power
            seconds = steps * self.step + fits * self.verify[length]
            seconds = max(seconds, fits * self.forward * (overtaken + length))
            best = max(best, (overtaken + fits * tokens) / seconds)
        return best

    def chain(self, drafting: Callable[[int], float]) -> float:
        """Of chains of the best length, if the cloud waits ``drafting(length)`` seconds more than it must."""
        best, tokens, power = 0.0, 1.0, 1.0
        for length in range(1, LONGEST + 1):
            power *= self.acceptance
            tokens += power
            best = max(best, tokens / (self.away + self.verify[length] + drafting(length)))
        return best
