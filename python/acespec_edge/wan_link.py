"""One direction of an emulated wide-area link, as arithmetic: when does a packet that is sent now arrive?

No sockets and no sleeping here; `acespec_edge.wan` moves the bytes.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from acespec_edge.errors import UsageError
from acespec_edge.units import seconds

SEGMENT = 1448
"""Payload bytes of one full TCP segment on an Ethernet path."""


@dataclass(frozen=True)
class Outage:
    """Nothing passes from `start` to `end` (seconds from the start); `cut` also breaks connections."""

    start: float
    end: float
    cut: bool = False


def parse_outages(value: str | Iterable[Outage], field: str = "outage") -> tuple[Outage, ...]:
    """Outages in order of time, from `START:DURATION[:cut]` separated by commas (`5s:2s,20s:500ms:cut`).

    Raises UsageError naming `field` when the text is malformed, a duration is zero, or two outages overlap.
    """
    given = [_parse_outage(part, field) for part in value.split(",")] if isinstance(value, str) else value
    outages = sorted(given, key=lambda outage: outage.start)
    for earlier, later in itertools.pairwise(outages):
        if later.start < earlier.end:
            raise UsageError(
                f"{field}: the one at {later.start:g} s begins before the one at {earlier.start:g} s ends"
            )
    return tuple(outages)


def _parse_outage(text: str, field: str) -> Outage:
    parts = text.strip().split(":")
    if len(parts) not in (2, 3) or (len(parts) == 3 and parts[2] != "cut"):
        raise UsageError(f"{field} is {text!r}: give START:DURATION or START:DURATION:cut, such as 5s:2s")
    start, duration = seconds(parts[0], f"{field} start"), seconds(parts[1], f"{field} duration")
    if duration <= 0:
        raise UsageError(f"{field} is {text!r}: the duration must be above zero")
    return Outage(start, start + duration, cut=len(parts) == 3)


class LinkModel:
    """A bottleneck that serialises packets at `rate`, then a pipe of `delay` seconds with jitter.

    Times are seconds on one monotonic clock whose zero is the moment the link came up. Every time is computed
    from earlier times of the model, never from when a timer happened to fire, so lateness does not add up.
    Bytes are sent in pieces (see `piece_bytes`); the queue counts what is not serialised yet.
    """

    def __init__(
        self,
        rate: float | None,
        delay: float,
        jitter: float,
        outages: tuple[Outage, ...],
        *,
        queue_bytes: int,
        packet_overhead: int,
        seed: int,
    ) -> None:
        self.rate = rate
        self.delay = delay
        self.jitter = jitter
        self.queue_bytes = queue_bytes
        self.packet_overhead = packet_overhead
        self._outages = outages
        self._random = random.Random(seed)
        self._free_at = 0.0
        self._queued = 0
        self._queue: deque[tuple[float, int]] = deque()

    @property
    def piece_bytes(self) -> int:
        """Largest piece to send: one segment, or what the link carries in a millisecond if that is more."""
        return 64 * 1024 if self.rate is None else max(SEGMENT, int(self.rate / 8e3))

    @property
    def window_bytes(self) -> int:
        """Bytes a connection may have under way: what fills queue and pipe, 16 MiB when rate is unlimited."""
        pipe = 16 << 20 if self.rate is None else int(self.rate / 8 * (self.delay + self.jitter))
        return self.queue_bytes + pipe + self.piece_bytes

    def room_at(self, now: float) -> float:
        """When the queue takes another piece: `now`, or the later moment at which enough has been
        serialised.
        """
        while self._queue and self._queue[0][0] <= now:
            self._queued -= self._queue.popleft()[1]
        excess = self._queued - self.queue_bytes
        at = now
        for departure, size in self._queue:
            if excess < 0:
                break
            excess -= size
            at = departure
        return at

    def send(self, now: float, size: int) -> float:
        """Queues a piece of `size` payload bytes at `now`; returns when its last byte arrives."""
        departure = self._serialise(max(now, self._free_at), size)
        self._free_at = departure
        if departure > now:
            self._queue.append((departure, size))
            self._queued += size
        arrival = departure + max(0.0, self.delay + self._random.uniform(-self.jitter, self.jitter))
        for outage in self._outages:
            if outage.start <= arrival < outage.end:
                arrival = outage.end
        return arrival

    def _serialise(self, start: float, size: int) -> float:
        work = 0.0
        if self.rate is not None:
            segments = -(-size // SEGMENT)
            work = (size + segments * self.packet_overhead) * 8 / self.rate
        for outage in self._outages:
            if start + work < outage.start:
                break
            if start < outage.end:
                work -= max(0.0, outage.start - start)
                start = outage.end
        return start + work
