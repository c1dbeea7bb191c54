"""Whether the other end of a link is still there, from pings and what is heard; arithmetic, no I/O."""

from __future__ import annotations

from typing import Final

from acespec_edge import _core

LEAST_BOUND: Final = 1.0
"""Seconds that an answer may take at least, however near the other end is."""

_UNMEASURED: Final = 3.0
"""Least bounds that the first answer may take: nobody knows the network yet."""

_SLOWEST: Final = 4000.0
"""Bytes a second of a link that still counts as one: a ping waits behind what was sent before it."""

_ATTENDED: Final = 0.5
"""Bounds of silence before a ping while somebody waits for messages."""

_UNATTENDED: Final = 5.0
"""Seconds of it while nobody does."""


class Heartbeat:
    """Asks when silence has lasted a while, and counts the other end as lost when nothing at all is heard for
    a bound after that: twice the round trip that 99 of 100 pings stay under (RFC 6298 smoothing), but not
    less than a second, and on top the time that what was sent before the ping may take.

    Times are seconds of one monotonic clock, ``offered`` is the count of bytes handed over for sending so
    far. Not thread-safe; O(1).
    """

    def __init__(self, at: float, *, least_bound: float = LEAST_BOUND) -> None:
        """A link that opened ``at``. ``least_bound``: seconds."""
        self._round_trip = _core.RoundTrip()
        self._least_bound = least_bound
        self._heard = at
        self._asked: float | None = None
        self._offered = self._delivered = 0

    @property
    def bound(self) -> float:
        """Seconds that an answer may take, but for what was sent before the ping."""
        if not self._round_trip.known:
            return _UNMEASURED * self._least_bound
        return max(self._least_bound, 2 * self._round_trip.quantile99)

    def heard(self, at: float) -> None:
        """Something arrived."""
        self._heard = max(self._heard, at)

    def asked(self, at: float, offered: int) -> None:
        """A ping left, or would have left if sending were not at work."""
        self._asked, self._offered = at, offered

    def answered(self, round_trip: float) -> None:
        """The answer to the last ping came ``round_trip`` seconds after it."""
        assert self._asked is not None
        self._delivered = self._offered
        at = self._asked + round_trip
        self._round_trip.observe(round_trip, at)
        self.heard(at)
        self._asked = None

    def lost_at(self) -> float | None:
        """When the other end counts as lost unless something is heard; None while no ping is out."""
        if self._asked is None:
            return None
        before = max(0, self._offered - self._delivered) / _SLOWEST
        return max(self._asked + before, self._heard) + self.bound

    def ping_at(self, *, attended: bool) -> float | None:
        """When to ping, if nothing is heard until then; None while a ping is out."""
        if self._asked is not None:
            return None
        if not self._round_trip.known:
            return self._heard
        return self._heard + (_ATTENDED * self.bound if attended else _UNATTENDED)
