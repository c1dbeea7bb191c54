"""What the cloud keeps of this device's requests, as far as this device knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from acespec_edge.prefix import MOST_TEXTS, Text, common_prefix, takes_over, text_of

_MARGIN: Final = 5.0
"""Seconds by which a context counts as gone early: messages take their time."""

_LEAST: Final = 32
"""Tokens from which on naming them is shorter than sending them."""


@dataclass(slots=True)
class _Known:
    text: Text
    at: float


class KnownContexts:
    """The texts of the last requests and the key of their session. It outlives a connection: a session that
    is given it asks the cloud to go on with the one before, and then sends of a prompt what is not kept.

    Never relied upon: the cloud may have dropped a context at any time, and says so. Memory is 4 bytes a
    token of at most 8 texts. Times are seconds of the clock that stamps arrivals. Not thread-safe.
    """

    def __init__(self) -> None:
        self.key = b""
        """Of the session, 16 bytes; empty before the first."""
        self._seconds = 0
        self._known: list[_Known] = []  # the newest last

    def welcomed(self, key: bytes, seconds: int) -> None:
        """Takes what Welcome says: the session's key, another one when the cloud does not know that session
        any more, and for how long it keeps contexts.
        """
        if key != self.key:
            self._known.clear()
        self.key, self._seconds = key, seconds

    def held(self, prompt: Text, at: float) -> int:
        """Tokens of the prompt that need not be sent; 0 when that would save nothing. O(prompt)."""
        until = at - (self._seconds - _MARGIN)
        self._known = [known for known in self._known if known.at > until]
        _, common = self._nearest(prompt)
        return common if common >= _LEAST else 0

    def begin(self, prompt: Text, at: float) -> None:
        """A request is sent; it is the newest from now on."""
        nearest, common = self._nearest(prompt)
        if nearest is not None and takes_over(common, len(nearest.text)):
            self._known.remove(nearest)
        self._known = [*self._known[1 - MOST_TEXTS :], _Known(prompt[:], at)]

    def grow(self, tokens: Sequence[int], at: float) -> None:
        """The newest text has grown by committed tokens."""
        if self._known:
            self._known[-1].text.extend(text_of(tokens))
            self._known[-1].at = at

    def fail(self) -> None:
        """The newest request failed: nothing of it is kept."""
        del self._known[-1:]

    def only_newest(self) -> None:
        """The cloud has said that it does not keep what it should: only the newest request is certain."""
        del self._known[:-1]

    def _nearest(self, prompt: Text) -> tuple[_Known | None, int]:
        """The text with the most in common, the newest of equals, as the cloud chooses."""
        nearest, most = None, 0
        for known in reversed(self._known):
            common = common_prefix(known.text, prompt)
            if common > most:
                nearest, most = known, common
        return nearest, most
