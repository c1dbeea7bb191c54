"""The waiting room: bounded, in order, and never lost a turn."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec_edge.gateway.errors import ApiError
from acespec_edge.gateway.turns import Turns


async def rest() -> None:
    """Lets everybody else go on until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_first_come_first_served_and_one_at_a_time() -> None:
    turns = Turns(10, 60.0)
    order: list[str] = []

    async def ask(name: str, times: int) -> None:
        for number in range(times):
            async with turns.turn():
                order.append(f"{name}{number}")
                await rest()

    await asyncio.gather(ask("a", 3), ask("b", 1), ask("c", 2))
    assert order == ["a0", "b0", "c0", "a1", "c1", "a2"]


def test_a_full_room_turns_away() -> None:
    turns = Turns(2, 60.0)
    with turns.admitted():
        with turns.admitted():
            with (
                pytest.raises(ApiError, match="2 requests are running or waiting") as caught,
                turns.admitted(),
            ):
                pass
            assert (caught.value.status, caught.value.headers["Retry-After"]) == (429, "1")
            assert caught.value.to_dict()["error"]["type"] == "rate_limit_error"
        with turns.admitted():
            assert turns.inside == 2
    assert turns.inside == 0


async def test_who_waits_too_long_is_turned_away_and_nobody_behind_it() -> None:
    turns = Turns(10, 0.05)
    async with turns.turn():
        with pytest.raises(ApiError, match=r"no turn came within 0\.05 s") as caught:
            async with turns.turn():
                raise AssertionError("the turn was taken")
        assert caught.value.status == 429
    async with turns.turn():
        pass


async def test_a_turn_that_comes_with_the_cancellation_is_passed_on() -> None:
    turns = Turns(10, 60.0)
    taken = []

    async def ask(name: str) -> None:
        async with turns.turn():
            taken.append(name)

    async with turns.turn():
        tasks = [asyncio.create_task(ask(name)) for name in "ab"]
        await rest()
    tasks[0].cancel()  # it has the turn, and has not run since
    await asyncio.wait(tasks)
    assert taken == ["b"]
    async with turns.turn():
        pass


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["ask", "end", "cancel"]), st.integers(0, 7)), max_size=60))
def test_whatever_happens_one_holds_the_turn_and_the_first_is_next(script: list[tuple[str, int]]) -> None:
    async def play() -> None:
        turns = Turns(100, 60.0)
        holders: list[int] = []
        ends: dict[int, asyncio.Event] = {}
        tasks: dict[int, asyncio.Task[None]] = {}
        expected: list[int] = []  # who asked and has not left, in order: the first one holds the turn

        async def ask(number: int) -> None:
            async with turns.turn():
                holders.append(number)
                try:
                    await ends[number].wait()
                finally:
                    holders.remove(number)

        for number, (action, which) in enumerate(script):
            if action == "ask":
                ends[number] = asyncio.Event()
                tasks[number] = asyncio.create_task(ask(number))
                expected.append(number)
            elif expected:
                leaving = expected[0] if action == "end" else expected[which % len(expected)]
                expected.remove(leaving)
                if action == "end":
                    ends[leaving].set()
                else:
                    tasks[leaving].cancel()
            await rest()
            assert holders == expected[:1]
        for number in expected:
            tasks[number].cancel()
        for task in tasks.values():
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(play())
