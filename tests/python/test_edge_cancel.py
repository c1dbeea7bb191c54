"""Cancelling and closing: whatever a runtime waits for, it ends soon and leaves nothing open."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from pathlib import Path

import pytest

from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import UsageError
from acespec_edge.generation import Ended, Event, Generation
from tests.clock import LIMIT, wait_until
from tests.python.edge_kit import DRAFTER, PROMPT, TARGET, runtime, unhurried
from tests.python.fake_bundle import make_bundle
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import FakeDrafter, decode_plainly

pytestmark = pytest.mark.usefixtures("threads_end")


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "bundle")


def test_leaving_the_loop_early_cancels(bundle: Bundle) -> None:
    cloud = FakeCloud(unhurried(TARGET))
    with runtime(bundle, cloud=cloud, draft_length=2) as edge:
        stream = edge.stream(PROMPT, max_tokens=4000)
        for piece in stream:
            if piece.at >= 0:
                break
        assert stream.result.finish_reason == "cancelled"
        count = len(stream.result.token_ids)
        assert stream.result.token_ids == decode_plainly(TARGET, PROMPT, count)
        assert edge.generate(PROMPT, max_tokens=5).token_ids == decode_plainly(TARGET, PROMPT, 5)


def test_close_ends_what_runs(bundle: Bundle) -> None:
    edge = runtime(bundle, cloud=FakeCloud(TARGET, silent_after=2), timeout=30.0)
    stream = edge.stream(PROMPT, max_tokens=40)
    next(stream)
    began = time.monotonic()
    edge.close()
    edge.close()
    assert time.monotonic() - began < 5.0
    with pytest.raises(UsageError, match="closed"):
        edge.generate(PROMPT)
    stream.close()
    assert stream.result.finish_reason == "cancelled"


async def test_async_cancellation_stops_the_thread(bundle: Bundle) -> None:
    with runtime(bundle, cloud=FakeCloud(TARGET, silent_after=2), timeout=30.0) as edge:
        task = asyncio.create_task(edge.agenerate(PROMPT, max_tokens=40))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def generating() -> bool:
    return any(thread.name == "acespec-generation" for thread in threading.enumerate())


async def test_leaving_an_async_loop_early_cancels(bundle: Bundle) -> None:
    with runtime(bundle, unhurried(TARGET)) as edge:
        stream = edge.astream(PROMPT, max_tokens=4000)
        async for _ in stream:
            break
        await asyncio.sleep(0)  # the loop finalises the iterator
        stopped = time.monotonic() + LIMIT
        while generating() and time.monotonic() < stopped:
            await asyncio.sleep(0.01)
        await stream.aclose()
        assert stream.result.finish_reason == "cancelled"
        assert len(stream.result.token_ids) < 4000
        assert time.monotonic() < stopped, "it went on until aclose()"


def test_cancelling_while_the_request_before_is_unanswered(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acespec_edge.channel._SETTLE_TIMEOUT", 60.0)
    with runtime(bundle, cloud=FakeCloud(TARGET, silent_after=3)) as edge:
        with edge.stream(PROMPT, max_tokens=4000) as stream:
            next(stream)
        waiting = edge.stream(PROMPT, max_tokens=5)
        time.sleep(0.1)
        began = time.monotonic()
        waiting.close()
        assert time.monotonic() - began < LIMIT
        assert waiting.result.finish_reason == "cancelled"


def test_closing_in_the_opening_handshake(bundle: Bundle) -> None:
    cloud = FakeCloud(TARGET, silent_after=0)
    edge = runtime(bundle, cloud=cloud, mode="edge")
    stream = edge.stream(PROMPT, mode="auto")
    wait_until(lambda: bool(cloud.received))
    began = time.monotonic()
    edge.close()
    assert time.monotonic() - began < 5.0, "it waited for the Welcome"
    assert cloud.closed
    stream.close()
    assert stream.result.finish_reason == "cancelled"


def ended(events: queue.SimpleQueue[Event]) -> Ended:
    event = events.get(timeout=5.0)
    assert isinstance(event, Ended)
    return event


def test_a_request_that_starts_after_close_opens_nothing(bundle: Bundle) -> None:
    links: list[FakeCloud] = []

    def connect() -> FakeCloud:
        links.append(FakeCloud(TARGET))
        return links[-1]

    edge = EdgeRuntime(bundle, connect, mode="cloud")
    late = edge._generation(PROMPT, {})
    edge.close()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    late.start(events.put)
    assert ended(events).result.finish_reason == "cancelled"
    late.join()
    assert len(links) == 1 and links[0].closed


def test_close_cancels_all_before_it_waits_for_one(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled_at_join: list[list[bool]] = []
    join = Generation.join

    def watched(generation: Generation) -> None:
        cancelled_at_join.append([stream._generation._cancelled.is_set() for stream in streams])
        join(generation)

    monkeypatch.setattr(Generation, "join", watched)
    edge = runtime(bundle, cloud=FakeCloud(TARGET, silent_after=2))
    streams = [edge.stream(PROMPT, max_tokens=40) for _ in range(5)]
    edge.close()
    assert cancelled_at_join == [[True] * 5] * 5
    for stream in streams:
        stream.close()
        assert stream.result.finish_reason == "cancelled"


def test_close_does_not_wait_for_ever_for_a_connection(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acespec_edge.generation._JOIN_TIMEOUT", 0.2)
    monkeypatch.setattr("acespec_edge.edge._CLOSE_TIMEOUT", 0.2)
    connecting, go_on = threading.Event(), threading.Event()
    cloud = FakeCloud(TARGET)

    def connect() -> FakeCloud:
        connecting.set()
        assert go_on.wait(3 * LIMIT)
        return cloud

    edge = EdgeRuntime(bundle, connect, drafter=FakeDrafter(DRAFTER), mode="edge")
    stream = edge.stream(PROMPT, mode="auto")
    assert connecting.wait(5.0)
    closing = threading.Thread(target=edge.close)
    closing.start()
    closing.join(LIMIT)
    try:
        assert not closing.is_alive()
    finally:
        go_on.set()
    stream.close()
    assert stream.result.finish_reason == "cancelled"
    assert cloud.closed
