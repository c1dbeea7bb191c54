"""Virtual time: order, waits, hand-overs, failures."""

from __future__ import annotations

import threading

import pytest

from acespec_edge.simulate.clock import SimulationError, World


def test_calls_are_made_in_order_of_time_then_of_scheduling() -> None:
    world = World()
    seen: list[tuple[float, str]] = []

    def note(what: str) -> None:
        seen.append((world(), what))

    def live() -> None:
        world.at(2.0, lambda: note("late"))
        world.at(1.0, lambda: note("early"))
        world.at(1.0, lambda: note("after early"))
        world.wait(1.5)
        note("between")
        world.at(1.0, lambda: note("overdue"))
        world.wait(3.0)

    world.spawn(live)
    world.run()
    assert seen == [
        (1.0, "early"),
        (1.0, "after early"),
        (1.5, "between"),
        (1.5, "overdue"),
        (2.0, "late"),
    ]
    assert world() == 3.0


def test_tasks_take_turns_and_never_run_at_once() -> None:
    world = World()
    trail: list[tuple[str, float]] = []
    running = threading.Lock()

    def live(name: str, pause: float) -> None:
        for _ in range(4):
            with running:
                trail.append((name, world()))
            world.wait(world() + pause)

    world.spawn(lambda: live("a", 2.0))
    world.spawn(lambda: live("b", 3.0))
    world.run()
    # At 6 b's wake-up had been scheduled first.
    assert trail == [
        ("a", 0.0), ("b", 0.0), ("a", 2.0), ("b", 3.0), ("a", 4.0), ("b", 6.0), ("a", 6.0), ("b", 9.0)
    ]  # fmt: skip
    assert world() == 12.0


def test_a_wait_ends_early_when_woken_and_its_deadline_then_means_nothing() -> None:
    world = World()
    ends: list[float] = []

    def live() -> None:
        task = world.current
        world.at(1.0, lambda: world.wake(task))
        world.wait(10.0)
        ends.append(world())
        world.wait(20.0)
        ends.append(world())

    world.spawn(live)
    world.run()
    assert ends == [1.0, 20.0]


def test_the_first_failure_ends_everything_and_is_raised() -> None:
    world = World()
    unwound: list[str] = []

    def patient() -> None:
        try:
            world.wait(100.0)
        finally:
            unwound.append("patient")

    def failing() -> None:
        world.wait(1.0)
        raise ValueError("on purpose")

    world.spawn(patient)
    world.spawn(failing)
    with pytest.raises(ValueError, match="on purpose"):
        world.run()
    assert unwound == ["patient"]
    assert world() == 1.0


def test_a_failing_call_is_raised_too() -> None:
    world = World()

    def call() -> None:
        raise SimulationError("in a call")

    def live() -> None:
        world.at(1.0, call)
        world.wait(2.0)

    world.spawn(live)
    with pytest.raises(SimulationError, match="in a call"):
        world.run()


def test_a_world_without_tasks_ends_at_once() -> None:
    world = World()
    world.run()
    assert world() == 0.0
