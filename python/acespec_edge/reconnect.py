"""Getting a lost connection back: when to try again, and the thread that tries."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Final

from acespec_edge.channel import Channel
from acespec_edge.errors import LinkError

_FIRST: Final = 0.5
_LONGEST: Final = 30.0
"""Seconds: ceilings of the first wait and of all."""

_CLOSE_TIMEOUT: Final = 0.5
"""Seconds for what notices that it is not needed any more; opening a socket does not."""


class Backoff:
    """Waits between attempts: exponential with full jitter, so that edges that were cut off together do not
    come back together. Attempt n waits a uniform share of min(30, 0.5 * 2^n) seconds. No clock. Not
    thread-safe.
    """

    def __init__(self, source: random.Random | None = None) -> None:
        """``source`` of the jitter."""
        self._random = source or random.Random()
        self._attempts = 0

    def next(self, least: float = 0.0) -> float:
        """Seconds until the next attempt; the peer asked for ``least``."""
        ceiling = min(_LONGEST, _FIRST * 2.0 ** min(self._attempts, 16))
        self._attempts += 1
        return least + self._random.uniform(0.0, ceiling)

    def reset(self) -> None:
        """A connection has proved itself by an answer; one that was merely made has not."""
        self._attempts = 0


class Reconnection:
    """Tries to connect, on a thread of its own, until it succeeds or is closed.

    For one thread, which calls wait() and close(). An attempt that is under way when it is closed ends by
    itself within the connector's time-out, and what it brings is closed.
    """

    def __init__(
        self, connect: Callable[[threading.Event], Channel | None], backoff: Backoff, delay: float
    ) -> None:
        """Begins after ``delay`` seconds. ``connect``: one attempt, soon None once its event is set; a
        LinkError means another attempt, everything else is final."""
        self.failure: LinkError | None = None
        """Of the last attempt."""
        self._connect = connect
        self._backoff = backoff
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._done = threading.Event()
        self._outcome: Channel | BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(delay,), name="acespec-reconnect", daemon=True
        )
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether wait() has something to give or to raise."""
        return self._done.is_set()

    def wait(self, seconds: float) -> Channel | None:
        """The connection, which is the caller's now; None when there is none within ``seconds``. Raises what
        no further attempt would change."""
        if not self._done.wait(seconds):
            return None
        with self._lock:
            outcome, self._outcome = self._outcome, None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def close(self) -> None:
        """Stops trying; a connection that nobody took is closed."""
        self._closed.set()
        self._thread.join(_CLOSE_TIMEOUT)
        with self._lock:
            outcome, self._outcome = self._outcome, None
        if isinstance(outcome, Channel):
            outcome.close("not needed any more")

    def _run(self, delay: float) -> None:
        outcome: Channel | BaseException | None = None
        while outcome is None and not self._closed.wait(delay):
            try:
                outcome = self._connect(self._closed)
            except LinkError as error:
                self.failure = error
                delay = self._backoff.next(error.retry_after or 0.0)
            except BaseException as error:
                outcome = error
        with self._lock:
            if not self._closed.is_set():
                self._outcome, outcome = outcome, None
                self._done.set()
        if isinstance(outcome, Channel):
            outcome.close("not needed any more")
