"""What drafting has yielded so far, by place in a chain and on the whole."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 32
"""Places of a chain that are told apart."""

_CHAINS: Final = 0.98
"""What a chain leaves of the weight of those before."""

_GENERAL: Final = 4
"""Chains that the drafter's acceptance in general counts for at every place."""

_ROUNDS: Final = 0.98
"""What a round leaves of the weight of those before: a round is a few tokens more or less, and a dozen of
them would often seem to be a bad drafter."""

_ALONE: Final = 0.98
"""What a token of the target alone leaves: the network that drafting was paid on may be another by now."""


class ChainRecord:
    """How far the target went along drafted chains; old ones fade. O(LONGEST), not thread-safe."""

    def __init__(self) -> None:
        self._tried = [0.0] * LONGEST
        self._taken = [0.0] * LONGEST

    def walked(self, accepted: int, length: int) -> None:
        """Takes that of a chain of ``length`` tokens the first ``accepted`` were accepted."""
        for place in range(min(accepted + 1, length, LONGEST)):
            self._tried[place] = _CHAINS * self._tried[place] + 1
            self._taken[place] = _CHAINS * self._taken[place] + (place < accepted)

    def prefixes(self, acceptance: float) -> list[float]:
        """The probability that the first i drafted tokens are all accepted, for each i up to LONGEST: what is
        known of the place, and of the drafter in general its ``acceptance``."""
        prefixes, whole = [], 1.0
        for tried, taken in zip(self._tried, self._taken, strict=True):
            whole *= (taken + _GENERAL * acceptance) / (tried + _GENERAL)
            prefixes.append(whole)
        return prefixes


class Yield:
    """What drafting has really yielded, by what a model foretold of it. O(1), not thread-safe."""

    def __init__(self) -> None:
        self._tokens = self._foretold = 0.0

    def observe(self, tokens: int, foretold: float) -> None:
        """Takes a round of ``tokens`` tokens, of which the model said ``foretold``."""
        self._tokens = _ROUNDS * self._tokens + tokens
        self._foretold = _ROUNDS * self._foretold + foretold

    def fade(self) -> None:
        """Forgets a little, with each token that the target decodes alone."""
        self._tokens *= _ALONE
        self._foretold *= _ALONE

    def bias(self, expected: float, tokens: float) -> float:
        """By what to multiply what the model says; what is ``expected`` without a record counts for
        ``tokens`` tokens."""
        return (self._tokens + expected * tokens) / (self._foretold + tokens)

    def __add__(self, other: Yield) -> Yield:
        both = Yield()
        both._tokens, both._foretold = self._tokens + other._tokens, self._foretold + other._foretold
        return both
