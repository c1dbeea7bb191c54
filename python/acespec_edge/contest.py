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

_EXPECTED: Final = 1.1
"""What drafting is expected to yield, by what the model says, before it is tried: trees, and drafts in
flight, yield more than the model's chains."""

_PROVEN: Final = 24
"""Tokens after which the drafter has shown what it is worth; before, the cloud goes on by itself, so that
trying costs nothing."""


class Contest:
    """Each way is taken for as good as a model says, times what it really yielded by what the model foretold.
    Rates are tokens a second. O(1), not thread-safe.
    """

    def __init__(self, policy: Policy) -> None:
        self.drafting = True
        self.joins = policy.go_on is not False
        self._policy = policy
        self._waited, self._joined = Yield(_EXPECTED), Yield(_EXPECTED)
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

    def saw(self, tokens: int) -> None:
        """Takes that ``tokens`` tokens were committed."""
        self._seen += tokens

    def choose(self, *, waited: float, joined: float, alone: float) -> None:
        """Sets ``drafting`` and ``joins`` by what the models say of each way."""
        waited *= self._waited.bias
        if self._policy.go_on is None:
            bound = waited * (_WORSE if self.joins else _BETTER)
            self.joins = self._seen < _PROVEN or joined * self._joined.bias >= bound
        if self._policy.cloud_only is not None:
            self.drafting = not self._policy.cloud_only
            return
        ends = _LEAST if self.joins else _WORSE
        expected = joined * min(1.0, self._joined.bias) if self.joins else waited
        self.drafting = expected >= (ends if self.drafting else _BETTER) * alone
