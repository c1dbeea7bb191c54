"""A cloud that is told to end: idle edges go, running requests may end, new ones are refused."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed

from acespec_edge import _core
from acespec_edge._core import FaultCode
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.clock import LIMIT, wait_until
from tests.cloud.live import LOGITS, PROMPT, Edge, served
from tests.cloud.rig import plain_greedy, scripted_rig
from tests.cloud.test_server import get


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Opening a request waits for it."""
    gate = threading.Event()
    opened = ScriptedVerifier.open

    def open_later(self: ScriptedVerifier):  # type: ignore[no-untyped-def]
        assert gate.wait(LIMIT)
        return opened(self)

    monkeypatch.setattr(ScriptedVerifier, "open", open_later)
    yield gate
    gate.set()


def hears_goodbye(edge: Edge) -> None:
    heard = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            heard.append(edge.hear())
    assert isinstance(heard[-1], _core.Close) and heard[-1].reason == "the cloud is shutting down"


def test_running_requests_end_and_the_rest_is_told(gate: threading.Event) -> None:
    with served() as (service, address, server), Edge(address, service).greet() as busy:
        with Edge(address, service).greet() as idle:
            busy.say(_core.Open(request=1, prompt=PROMPT, max_tokens=1))
            wait_until(lambda: service.counters.read()["requests"] == 1)
            server.drain()
            hears_goodbye(idle)
        with Edge(address, service) as late:
            fault = late.hear()
            assert fault.code == FaultCode.busy and fault.retry_after_ms > 0
            assert fault.message == "the cloud is shutting down"
        status, body = get(address, "/healthz")
        assert status == 503 and '"draining"' in body
        assert not server.should_exit
        gate.set()
        assert busy.hear().tokens == plain_greedy(LOGITS, PROMPT, 1)
        hears_goodbye(busy)
        wait_until(lambda: server.should_exit)


def test_a_request_that_does_not_end_in_time_is_told(gate: threading.Event) -> None:
    with served(drain_seconds=0.0) as (service, address, server), Edge(address, service).greet() as edge:
        edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=1))
        wait_until(lambda: service.counters.read()["requests"] == 1)
        server.drain()
        hears_goodbye(edge)
        gate.set()


def test_a_session_gets_no_further_request() -> None:
    rig = scripted_rig()
    client = rig.client()
    client.open(PROMPT, max_tokens=9)
    rig.service.drain()
    assert client.hung_up is None and rig.service.sessions == 1
    client.say(_core.Cancel(request=1))
    assert isinstance(client.next(), _core.Verdict)
    rig.service.draining = True
    answer = client.open(PROMPT, max_tokens=9, request=2)
    assert isinstance(answer, _core.Fault) and answer.code == FaultCode.busy and answer.retry_after_ms > 0
    assert not rig.service.drain()
    assert isinstance(client.next(), _core.Close) and client.hung_up == "the cloud is shutting down"
