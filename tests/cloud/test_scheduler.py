"""The worker: turns, cancelling, pacing, failures, and its end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest

from cloud_stub.scheduler import Pacing, Scheduler, Units
from tests.clock import steady


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(Pacing())
    yield scheduler
    assert scheduler.close(timeout=5.0)


def recorded(log: list[str], name: str, units: int, done: threading.Event | None = None) -> Units:
    for number in range(units):
        if number:
            yield
        log.append(f"{name}{number}")
    if done is not None:
        done.set()


def blocked(gate: threading.Event, running: threading.Event) -> Units:
    running.set()
    assert gate.wait(5.0)
    return
    yield


def test_jobs_take_turns_by_unit(scheduler: Scheduler) -> None:
    gate, running, done = threading.Event(), threading.Event(), threading.Event()
    log: list[str] = []
    scheduler.submit(blocked(gate, running))
    assert running.wait(5.0)
    scheduler.submit(recorded(log, "a", 3, done))
    scheduler.submit(recorded(log, "b", 1))
    scheduler.submit(recorded(log, "c", 2))
    assert scheduler.waiting == 3
    gate.set()
    assert done.wait(5.0)
    assert log == ["a0", "b0", "c0", "a1", "c1", "a2"]


def test_a_cancelled_job_runs_no_further_unit(scheduler: Scheduler) -> None:
    gate, running, done = threading.Event(), threading.Event(), threading.Event()
    log: list[str] = []
    scheduler.submit(blocked(gate, running))
    assert running.wait(5.0)
    scheduler.cancel(scheduler.submit(recorded(log, "a", 1)))
    scheduler.submit(recorded(log, "b", 1, done))
    gate.set()
    assert done.wait(5.0)
    assert log == ["b0"]


def test_what_is_cancelled_leaves_the_queue_at_once(scheduler: Scheduler) -> None:
    gate, running = threading.Event(), threading.Event()
    scheduler.submit(blocked(gate, running))
    assert running.wait(5.0)
    job = scheduler.submit(recorded([], "a", 2))
    assert scheduler.waiting == 1
    scheduler.cancel(job)
    assert scheduler.waiting == 0 and job.units.gi_frame is None
    scheduler.cancel(job)
    gate.set()


def test_a_unit_that_raises_ends_its_job_only(scheduler: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Units:
        raise RuntimeError("out of memory")
        yield

    done = threading.Event()
    with caplog.at_level(logging.ERROR):
        scheduler.submit(broken())
        scheduler.submit(recorded([], "a", 1, done))
        assert done.wait(5.0)
    assert "a unit of work failed" in caplog.text


def test_pacing_pads_to_base_and_nodes() -> None:
    assert Pacing(150, 1).seconds(8) == pytest.approx(0.158)
    scheduler = Scheduler(Pacing(20, 5))
    started = time.monotonic()
    scheduler.pad(started, 4)
    assert time.monotonic() - started >= 0.04

    def pad_late() -> float:
        started = time.monotonic()
        scheduler.pad(started - 1.0, 4)
        return time.monotonic() - started

    def adds_nothing(took: float) -> None:
        assert took < 0.02, "nothing is added to a forward that took longer"

    steady(pad_late, adds_nothing)
    scheduler.close()


def test_close_interrupts_a_padded_forward() -> None:
    scheduler = Scheduler(Pacing(60_000, 0))
    running = threading.Event()

    def padded() -> Units:
        running.set()
        scheduler.pad(time.monotonic(), 0)
        return
        yield

    scheduler.submit(padded())
    assert running.wait(5.0)
    assert scheduler.close(timeout=5.0)
    scheduler.submit(recorded([], "never", 1))
    assert scheduler.waiting == 0
