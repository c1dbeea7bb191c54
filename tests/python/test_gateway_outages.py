"""The gateway while its runtime has no cloud: who waits, who is told, and what stops the trying."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import LinkError
from acespec_edge.transport import Link
from tests.clock import LIMIT, wait_until
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import FakeDrafter, mixing
from tests.python.gateway_kit import chat_bundle, events, serving, writes
from tests.python.test_gateway_faults import request

pytestmark = pytest.mark.usefixtures("threads_end", "at_once")

TEXT = "hello world, this is a long answer to a short question"
TARGET = writes(TEXT)
COUNT = len(TEXT)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return chat_bundle(tmp_path / "bundle", eos_ids=())


class Outage:
    """A connector whose first cloud is lost after some messages; then there is none until ``over``."""

    def __init__(self, messages: int = 4) -> None:
        self._first: FakeCloud | None = FakeCloud(TARGET, vanish_after=messages)
        self.attempts = 0
        self.over = threading.Event()

    def __call__(self) -> Link:
        self.attempts += 1
        if (first := self._first) is not None:
            self._first = None
            return first
        if not self.over.is_set():
            raise LinkError("cannot reach the cloud")
        return FakeCloud(TARGET)


def edge_of(bundle: Bundle, outage: Outage, **options: Any) -> EdgeRuntime:
    options.setdefault("drafter", FakeDrafter(TARGET))
    return EdgeRuntime(bundle, outage, draft_length=2, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_in_an_outage_stops_the_trying(bundle: Bundle, stream: bool) -> None:
    outage = Outage()
    with serving(edge_of(bundle, outage)) as live:
        sock = request(live, stream=stream, max_tokens=COUNT)
        wait_until(lambda: outage.attempts > 3)
        sock.close()
        wait_until(lambda: live.gateway.turns.inside == 0)
        wait_until(lambda: not any(one.name == "acespec-reconnect" for one in threading.enumerate()))
        outage.over.set()
        assert live.chat(max_tokens=COUNT).json()["choices"][0]["message"]["content"] == TEXT


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_survives_an_outage(bundle: Bundle, stream: bool) -> None:
    outage = Outage()
    with serving(edge_of(bundle, outage)) as live:
        waiter = threading.Thread(target=lambda: (wait_until(lambda: outage.attempts > 3), outage.over.set()))
        waiter.start()
        answer = live.chat(n=2, max_tokens=COUNT, stream=stream)
        waiter.join(LIMIT)
    if not stream:
        body = answer.json()
        texts = [choice["message"]["content"] for choice in body["choices"]]
        assert body["usage"]["completion_tokens"] == 2 * COUNT
    else:
        texts = ["", ""]
        for one in events(answer)[:-1]:
            for choice in one["choices"]:
                texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == [TEXT, TEXT]


@pytest.mark.parametrize("stream", [False, True])
def test_a_gateway_that_ends_in_an_outage_waits_for_no_cloud(bundle: Bundle, stream: bool) -> None:
    outage = Outage()
    answers: list[httpx.Response] = []
    with serving(edge_of(bundle, outage, reconnect_for=1000.0)) as live:
        asking = threading.Thread(target=lambda: answers.append(live.chat(stream=stream, max_tokens=COUNT)))
        asking.start()
        wait_until(lambda: outage.attempts > 3)
        live.server.should_exit = True
        asking.join(LIMIT)
    [answer] = answers
    assert "shutting_down" in answer.text
    assert answer.status_code == (200 if stream else 503)


def test_who_wrote_what_is_told_for_each_choice(bundle: Bundle) -> None:
    """Of a device that goes on alone; what it counts never falls."""
    outage = Outage()
    with serving(edge_of(bundle, outage, drafter=FakeDrafter(mixing(3)), offline_after=0.0)) as live:
        body = live.chat(n=2, max_tokens=COUNT).json()
        chunks = events(live.chat(max_tokens=5, stream=True))
    assert 0 < body["usage"]["acespec"]["edge_tokens"] < 2 * COUNT
    marked = [one for one in chunks[:-1] if one["choices"][0]["delta"].get("content")]
    assert marked and all(one["acespec"] == {"origin": "edge"} for one in marked)
