"""One worker thread owns the model; sessions queue pieces of work for it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

logger = logging.getLogger(__name__)

_CHORE_INTERVAL = 1.0

Units = Generator[None, None, None]
"""Work in pieces: the worker runs up to the next ``yield``, then lets the others have a turn."""


@dataclass(frozen=True, slots=True)
class Pacing:
    """Shortest time of a forward, in milliseconds: ``base + per_node * nodes``. Stands in for a larger
    target.
    """

    base_ms: float = 0.0
    per_node_ms: float = 0.0

    def seconds(self, nodes: int) -> float:
        """Shortest time of a forward that verifies ``nodes`` nodes."""
        return (self.base_ms + self.per_node_ms * nodes) / 1000.0


class Job:
    """A piece of queued work, for ``Scheduler.cancel``."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self.cancelled = False


class Scheduler:
    """First come, first served, by unit. A session has at most one job queued, and a job goes to the back
    of the queue after every unit, so sessions take turns and a long prompt delays nobody by more than one
    chunk.

    Thread-safe. A unit that raises ends its job and is logged; the worker goes on. ``chore`` is called on the
    worker's thread about once a second while nothing is queued, and must not raise.
    """

    def __init__(self, pacing: Pacing, chore: Callable[[], None] = lambda: None) -> None:
        self.pacing = pacing
        self._chore = chore
        self._queue: deque[Job] = deque()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._worker = threading.Thread(target=self._run, name="acespec-verifier", daemon=True)
        self._worker.start()

    def submit(self, units: Units) -> Job:
        """Queues ``units``. After ``close`` they are dropped."""
        job = Job(units)
        with self._changed:
            if not self._stopping.is_set():
                self._queue.append(job)
                self._changed.notify()
        return job

    def cancel(self, job: Job) -> None:
        """Drops what is left of ``job``, and with it all that its units hold. A unit that runs is not
        interrupted.
        """
        with self._changed:
            job.cancelled = True
            if job in self._queue:
                self._queue.remove(job)
                job.units.close()

    @property
    def waiting(self) -> int:
        """Jobs queued, the running one not counted."""
        return len(self._queue)

    def pad(self, started: float, nodes: int) -> None:
        """Called by a unit: sleeps until the pacing's time for ``nodes`` nodes has passed since
        ``started``.
        """
        remaining = started + self.pacing.seconds(nodes) - time.monotonic()
        if remaining > 0:
            self._stopping.wait(remaining)

    def close(self, timeout: float = 30.0) -> bool:
        """Drops what is queued, lets the running unit end, and says whether it did within ``timeout``
        seconds.
        """
        with self._changed:
            self._stopping.set()
            self._queue.clear()
            self._changed.notify()
        self._worker.join(timeout)
        return not self._worker.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._queue and not self._stopping.is_set():
                    self._changed.wait(_CHORE_INTERVAL)
                if not self._queue and self._stopping.is_set():
                    return
                job = self._queue.popleft() if self._queue else None
            if job is None:
                self._chore()
            elif self._advance(job):
                with self._changed:
                    if not (job.cancelled or self._stopping.is_set()):
                        self._queue.append(job)

    def _advance(self, job: Job) -> bool:
        """Runs one unit; says whether there is more."""
        try:
            next(job.units)
        except StopIteration:
            return False
        except Exception:
            logger.exception("a unit of work failed")
            return False
        return True
