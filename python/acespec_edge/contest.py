"""Which of three ways to run a request: the target alone, drafts that it waits for, drafts that join it."""

from __future__ import annotations

from typing import Final

from acespec_edge.policy import Policy
from acespec_edge.track_record import Yield

_BETTER, _WORSE = 1.03, 0.95
"""Rates relative to the target alone at which drafting begins and ends; and those of drafts that join a cloud
that goes on, relative to drafts that it waits for, at which going on begins and ends."""

_LEAST: Final = 1.01
"""The first of these at which drafts end that join: they slow nothing down, but are work."""

_EXPECTED: Final = (1.1, 20.0)
"""What drafting is expected to yield, relative to what the models say, before it is tried, and for how many
tokens that counts: trees, and drafts in flight, yield more than the models' chains."""

_ALIKE: Final = 100.0
"""Tokens that the record of both ways counts for in the record of each."""

_PROVEN: Final = 24
"""Tokens after which the drafter has shown what it is worth; before, the cloud goes on by itself, so that
trying costs nothing."""

_TELLING: Final = 3
"""What a drafted token that the target takes tells, in tokens: it does not happen to a drafter of no use."""


class Contest:
    """Each way is taken for as good as a model says, times what it really yielded by what the model foretold.
    What the models do not know of a drafter and its texts they do not know alike: a way that is not taken is
    expected to be as far from its model as the one that is. Rates are tokens a second. O(1), not thread-safe.
    """

    def __init__(self, policy: Policy) -> None:
        self.drafting = True
        self.joins = policy.go_on is not False
        self._policy = policy
        self._waited, self._joined = Yield(), Yield()
        self._seen = 0

    def observe(self, tokens: int, foretold: float, *, counts: bool) -> None:
        """Takes a verdict of ``tokens`` tokens, of which the model of the way in force said ``foretold``.
        ``counts``: it is of a round, and the model knows what that takes.
        """
        used, other = (self._joined, self._waited) if self.joins else (self._waited, self._joined)
        other.fade()
        if not self.drafting:
            used.fade()
        elif counts:
            used.observe(tokens, foretold)

    def saw(self, tokens: int, drafted: int) -> None:
        """Takes that ``tokens`` tokens were committed, ``drafted`` of them the drafter's."""
        self._seen += tokens + (_TELLING - 1) * drafted

    def choose(self, *, waited: float, joined: float, alone: float) -> None:
        """Sets ``drafting`` and ``joins`` by what the models say of each way."""
        common = (self._waited + self._joined).bias(*_EXPECTED)
        bias = self._joined.bias(common, _ALIKE)
        waited *= self._waited.bias(common, _ALIKE)
        if self._policy.go_on is None:
            bound = waited * (_WORSE if self.joins else _BETTER)
            self.joins = self._seen < _PROVEN or joined * bias >= bound
        if self._policy.cloud_only is not None:
            self.drafting = not self._policy.cloud_only
            return
        ends = _LEAST if self.joins else _WORSE
        expected = joined * min(1.0, bias) if self.joins else waited
        self.drafting = expected >= (ends if self.drafting else _BETTER) * alone
