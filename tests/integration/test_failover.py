"""One edge and two clouds of one target: whichever serves, the text is the target's."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import LinkError
from acespec_edge.resumption import LinkEvent
from cloud_stub.server import CloudServer, Listener
from tests.clock import LIMIT
from tests.integration.edge_cloud_kit import (
    CONTEXT,
    COUPLED,
    PROMPT,
    make_service,
    native_drafter,
    plainly,
    served,
)
from tests.integration.relay import Relay

pytestmark = pytest.mark.usefixtures("threads_end")

COUNT = 24


def url(port: int) -> str:
    return f"ws://127.0.0.1:{port}/v1/spec"


def edge_to(bundle: Bundle, *ports: int, **options: Any) -> EdgeRuntime:
    return EdgeRuntime(
        bundle, [url(port) for port in ports], drafter=native_drafter(), context=CONTEXT, **options
    )


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def test_requests_go_on_where_a_cloud_is(bundle: Bundle) -> None:
    expected = plainly(PROMPT, COUNT)
    with contextlib.ExitStack() as second, contextlib.ExitStack() as first:
        ports = first.enter_context(served(bundle)), second.enter_context(served(bundle))
        with edge_to(bundle, *ports) as edge:
            assert edge.generate(PROMPT, max_tokens=COUNT).token_ids == expected
            first.close()
            assert edge.generate(PROMPT, max_tokens=COUNT).token_ids == expected


@pytest.mark.parametrize("options", [{}, COUPLED], ids=["greedy", "coupled"])
def test_w1_a_request_goes_on_at_another_cloud(bundle: Bundle, options: dict[str, Any]) -> None:
    """The first cloud goes away in the middle and stays away; no token is lost, repeated or changed."""
    count, got = 120, list[int]()
    with served(bundle, verify_ms=10) as port, served(bundle, verify_ms=10) as other:
        relay = Relay(port)
        with contextlib.closing(relay), edge_to(bundle, relay.port, other) as edge:
            for piece in edge.stream(PROMPT, max_tokens=count, **options):
                if len(got) < 20 <= len(got) + len(piece.token_ids):
                    relay.close()
                got += piece.token_ids
    assert got == plainly(PROMPT, count, _core.SamplingRules(**options))


@contextlib.contextmanager
def draining(bundle: Bundle, drain_seconds: float) -> Iterator[tuple[int, CloudServer]]:
    """A cloud that can be told to drain, and its port."""
    ready = threading.Event()
    service = make_service(bundle, verify_ms=10)
    server = CloudServer(
        service, Listener(port=0), on_ready=lambda address: ready.set(), drain_seconds=drain_seconds
    )
    thread = threading.Thread(target=server.run, name="cloud", daemon=True)
    thread.start()
    try:
        assert ready.wait(LIMIT)
        yield server.servers[0].sockets[0].getsockname()[1], server
    finally:
        server.should_exit = True
        thread.join(LIMIT)


@pytest.mark.parametrize("seconds", [0.0, 20.0], ids=["told", "drained"])
def test_w1_a_cloud_that_drains_is_left_for_another(bundle: Bundle, seconds: float) -> None:
    """In mid-answer when its time is over, else between two requests; nothing is lost and nobody is told that
    it is busy."""
    count, got = 120, list[int]()
    with draining(bundle, seconds) as (port, first), served(bundle, verify_ms=10) as other:
        events: list[LinkEvent] = []
        with edge_to(bundle, port, other, on_link=events.append) as edge:
            for piece in edge.stream(PROMPT, max_tokens=count):
                if len(got) < 20 <= len(got) + len(piece.token_ids):
                    first.drain()
                got += piece.token_ids
            assert got == plainly(PROMPT, count)
            assert [event.kind for event in events] == ([] if seconds else ["lost", "back"])
            assert edge.generate(PROMPT, max_tokens=COUNT).token_ids == plainly(PROMPT, COUNT)
            # The goodbye and the next request may cross; then that request is refused, and goes elsewhere.
            assert [event.kind for event in events] in ([], ["lost", "back"])


def test_a_cloud_that_is_not_there_is_passed_over(bundle: Bundle) -> None:
    with served(bundle) as port, edge_to(bundle, closed_port(), port) as edge:
        assert edge.generate(PROMPT, max_tokens=COUNT).token_ids == plainly(PROMPT, COUNT)


def test_a_full_cloud_is_passed_over(bundle: Bundle) -> None:
    with (
        served(bundle, max_sessions=1) as full,
        served(bundle) as free,
        edge_to(bundle, full) as holder,
        edge_to(bundle, full, free) as edge,
    ):
        assert edge.generate(PROMPT, max_tokens=COUNT).token_ids == plainly(PROMPT, COUNT)
        assert holder.generate(PROMPT, max_tokens=COUNT).token_ids == plainly(PROMPT, COUNT)


def test_when_no_cloud_is_there_each_is_named(bundle: Bundle) -> None:
    first, second = closed_port(), closed_port()
    with pytest.raises(LinkError) as caught:
        edge_to(bundle, first, second)
    for port in (first, second):
        assert f"{url(port)}: cannot reach the cloud" in str(caught.value)
