"""Virtual time: threads of control that run one at a time, each until it has to wait."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from typing import Final

from acespec_edge.errors import AcespecError

_JOIN_TIMEOUT: Final = 60.0


class SimulationError(AcespecError):
    """The simulated parts wait for each other and for nothing else."""


class _Aborted(BaseException):
    """Unwinds a thread of a simulation that has failed elsewhere."""


class Task:
    """One thread of control. ``turn`` is released to let it run; ``waits`` numbers its waits, so that what
    would end an earlier one does nothing."""

    def __init__(self) -> None:
        self.turn = threading.Semaphore(0)
        self.waits = 0


_Event = tuple[float, int, Callable[[], None] | None, Task | None, int]
"""When; in which order at that moment; what to call, or whom to wake from which wait."""


class World:
    """A virtual clock in seconds from 0, what is due on it, and the tasks that live by it.

    Of all tasks exactly one runs at any time, and time passes only while it waits: whoever waits carries out
    what is due, in order of time and then of scheduling, until it is its own turn again or another task's.
    So a run is a function of what was scheduled, whatever the machine does. A single task never switches
    threads. Calling a world gives the time; everything else is for its tasks and for callbacks, but run().
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._due: list[_Event] = []
        self._scheduled = 0
        self._current: Task | None = None
        self._living = 0
        self._ended = threading.Semaphore(0)
        self._failure: BaseException | None = None
        self._tasks: list[Task] = []
        self._threads: list[threading.Thread] = []

    def __call__(self) -> float:
        """Now."""
        return self._now

    @property
    def current(self) -> Task:
        """The task that runs."""
        assert self._current is not None, "outside of a task"
        return self._current

    def at(self, moment: float, call: Callable[[], None]) -> None:
        """Has ``call`` made at ``moment``, or at once when that has passed; it must not wait."""
        self._schedule(moment, call, None, 0)

    def wake(self, task: Task) -> None:
        """Ends the wait of ``task`` now."""
        self._schedule(self._now, None, task, task.waits)

    def wait(self, until: float) -> None:
        """Lets others run until ``until``, or until somebody wakes this task."""
        task = self.current
        task.waits += 1
        self._schedule(until, None, task, task.waits)
        woken = self._advance()
        if woken is task:
            return
        woken.turn.release()
        task.turn.acquire()
        if self._failure is not None:
            raise _Aborted
        self._current = task

    def spawn(self, function: Callable[[], None]) -> None:
        """Adds a task that begins now; before run()."""
        task = Task()
        self._tasks.append(task)
        self._living += 1
        self._schedule(self._now, None, task, task.waits)
        name = f"acespec-simulated-{len(self._tasks)}"
        self._threads.append(
            threading.Thread(target=self._live, args=(task, function), name=name, daemon=True)
        )

    def run(self) -> None:
        """Runs all tasks to their ends; raises what the first of them raises. Once."""
        if not self._threads:
            return
        for thread in self._threads:
            thread.start()
        self._advance().turn.release()
        self._ended.acquire()
        for task in self._tasks:
            task.turn.release()
        for thread in self._threads:
            thread.join(_JOIN_TIMEOUT)
        if self._failure is not None:
            raise self._failure

    def _schedule(self, moment: float, call: Callable[[], None] | None, task: Task | None, wait: int) -> None:
        self._scheduled += 1
        heapq.heappush(self._due, (max(moment, self._now), self._scheduled, call, task, wait))

    def _advance(self) -> Task:
        """Carries out what is due until a task's turn has come; returns the task."""
        while self._due:
            self._now, _, call, task, wait = heapq.heappop(self._due)
            if call is not None:
                call()
            elif task is not None and task.waits == wait:
                task.waits += 1
                return task
        raise SimulationError("every simulated client waits, and nothing is due that could wake one")

    def _live(self, task: Task, function: Callable[[], None]) -> None:
        task.turn.acquire()
        if self._failure is not None:
            return
        self._current = task
        try:
            function()
            self._living -= 1
            if self._living:
                self._advance().turn.release()
                return
        except _Aborted:
            return
        except BaseException as error:
            self._failure = error
        self._ended.release()
