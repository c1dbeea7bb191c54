"""Who may use the runtime now: one generation at a time, in the order they asked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Final

from acespec_edge.gateway.errors import ApiError

_LONGEST_ADVICE: Final = 60.0
"""Seconds that a client is told to stay away at most."""


class Turns:
    """A waiting room of ``room`` requests, the running one included, in front of one runtime.

    A request of several generations queues for each, so that no long one keeps all others out. For one event
    loop; every operation is O(1), but for leaving the queue early, which is O(room).
    """

    def __init__(self, room: int, patience: float) -> None:
        """``patience``: seconds that a generation waits for its turn at most."""
        self._room = room
        self._patience = patience
        self._taken = False
        self._queue: deque[asyncio.Future[None]] = deque()
        self._last = 0.0
        self.inside = 0

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """A place in the room while the block runs. Raises ApiError (429) when there is none."""
        if self.inside >= self._room:
            raise self._busy(f"{self.inside} requests are running or waiting, no more are taken")
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The runtime, for this block alone. Raises ApiError (429) when the wait was too long."""
        if self._taken:
            await self._wait()
        self._taken = True
        began = time.monotonic()
        try:
            yield
        finally:
            self._last = time.monotonic() - began
            self._pass_on()

    async def _wait(self) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            await asyncio.wait({place}, timeout=self._patience)
        except asyncio.CancelledError:
            # The turn may have come in the same moment; nobody else would pass it on.
            if place.done():
                self._pass_on()
            else:
                self._queue.remove(place)
            raise
        if not place.done():
            self._queue.remove(place)
            raise self._busy(f"no turn came within {self._patience:g} s")

    def _pass_on(self) -> None:
        if self._queue:
            self._queue.popleft().set_result(None)  # the turn stays taken: the next one has it
        else:
            self._taken = False

    def _busy(self, what: str) -> ApiError:
        advice = min(max(self._last, 1.0), _LONGEST_ADVICE)
        return ApiError(429, f"busy: {what}; try again later", code="busy", retry_after=advice)
