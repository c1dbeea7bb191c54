"""Sleeping until a moment, more finely than an event loop does (epoll rounds waits up to a millisecond)."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time

_LEARNING_RATE = 0.05
_LARGEST_ERROR = 0.001


class Alarm:
    """A thread that wakes coroutines of one event loop at given times of `time.monotonic()`.

    Waking takes two thread switches; the alarm learns how long they take here and rings that much earlier,
    so that wake-ups are right on average and some are early by a fraction of a millisecond. Create and use
    it inside the running loop; `close()` ends the thread, and coroutines that still sleep are never woken:
    cancel them.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._lead = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="acespec-alarm", daemon=True)
        self._thread.start()

    async def until(self, when: float) -> None:
        """Returns at `when`; at once when that has passed or is too near to sleep for."""
        ring = when - self._lead
        if ring <= time.monotonic():
            return
        future: asyncio.Future[None] = self._loop.create_future()
        with self._changed:
            heapq.heappush(self._heap, (ring, next(self._order), future))
            if self._heap[0][2] is future:
                self._changed.notify()
        await future
        error = min(_LARGEST_ERROR, max(-_LARGEST_ERROR, time.monotonic() - when))
        self._lead = min(_LARGEST_ERROR, max(0.0, self._lead + _LEARNING_RATE * error))

    def close(self) -> None:
        """Ends the thread and waits for it."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                due = []
                while self._heap and self._heap[0][0] <= now:
                    due.append(heapq.heappop(self._heap)[2])
                if due:
                    self._loop.call_soon_threadsafe(_wake, due)
                self._changed.wait(self._heap[0][0] - now if self._heap else None)


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
