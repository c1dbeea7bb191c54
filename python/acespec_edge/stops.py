"""Stop strings over a stream of text."""

from __future__ import annotations

from collections.abc import Sequence

from acespec_edge.errors import UsageError

MAX_STOPS = 16
"""Stop strings of one request."""


class StopStrings:
    """Cuts a stream of text before the first stop string, and never lets a part of one out.

    The stop that completes first wins; of several that complete at the same character, the longest. So the
    cut depends on the text alone, not on how tokens or blocks divide it. Text that may still become a stop is
    held back: at most one character less than the longest stop. O(text x stops x longest stop). Not
    thread-safe.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises UsageError for an empty stop string or more than ``MAX_STOPS``."""
        if len(stops) > MAX_STOPS:
            raise UsageError(f"stop has {len(stops)} strings: at most {MAX_STOPS} are allowed")
        for index, stop in enumerate(stops):
            if not isinstance(stop, str) or not stop:
                raise UsageError(
                    f"stop[{index}] is {stop!r}: a stop must be a string of one character or more"
                )
        self._stops = sorted(stops, key=len, reverse=True)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Takes the next piece of text, returns what is safe to show. After a stop (``stopped``) nothing
        is."""
        if self.stopped:
            return ""
        seen = len(self._held)
        self._held += text
        for end in range(seen + 1, len(self._held) + 1):
            for stop in self._stops:
                if self._held.endswith(stop, 0, end):
                    self.stopped = True
                    return self._release(end - len(stop), discard=True)
        return self._release(len(self._held) - self._undecided())

    def finish(self) -> str:
        """The text still held back, when the stream ended without a stop."""
        return self._release(len(self._held))

    def _release(self, length: int, *, discard: bool = False) -> str:
        shown, rest = self._held[:length], self._held[length:]
        self._held = "" if discard else rest
        return shown

    def _undecided(self) -> int:
        """Length of the longest suffix that is a proper prefix of a stop."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            suffix = self._held[-length:]
            if any(len(stop) > length and stop.startswith(suffix) for stop in self._stops):
                return length
        return 0
