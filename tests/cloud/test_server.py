"""The real server on loopback, spoken to with a bare WebSocket client."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from acespec_edge import _core
from acespec_edge.keyring import Keyring
from cloud_stub.scheduler import Pacing
from cloud_stub.server import Listener
from cloud_stub.service import Service
from tests.clock import steady, wait_until
from tests.cloud.live import LOGITS, PROMPT, TIMEOUT, Edge, running, serves
from tests.cloud.rig import plain_greedy, tiny_vocabulary

Finish, FaultCode = _core.Finish, _core.FaultCode


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Service, str]]:
    with running() as pair:
        yield pair


def test_a_whole_request(shared: tuple[Service, str]) -> None:
    service, address = shared
    expected = plain_greedy(LOGITS, PROMPT, 6)
    with Edge(address, service).greet() as edge:
        edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=6))
        assert edge.hear().tokens == expected[:1]
        edge.say(_core.Draft(request=1, round=1, base=4, tokens=expected[1:4]))
        edge.say(_core.Draft(request=1, round=1, base=4, tokens=expected[1:4]))
        verdict = edge.hear()
        assert (verdict.accepted_node, verdict.tokens, verdict.finish) == (3, expected[4:5], Finish.none)
        edge.say(_core.Draft(request=1, round=2, base=8, tokens=[]))
        verdict = edge.hear()
        assert (verdict.round, verdict.tokens, verdict.finish) == (2, expected[5:], Finish.length)


def test_free_run_and_cancel() -> None:
    """The pacing keeps the request running for seconds: the Cancel is in time."""
    expected = plain_greedy(LOGITS, PROMPT, 50)
    with running(pacing=Pacing(2)) as (service, address), Edge(address, service).greet() as edge:
        edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=50, free_run=True))
        assert [edge.hear().tokens[0] for _ in range(50)] == expected
        edge.say(_core.Open(request=2, prompt=PROMPT, max_tokens=4000, free_run=True))
        edge.say(_core.Cancel(request=2))
        while (verdict := edge.hear()).finish == Finish.none:
            pass
        assert verdict.finish == Finish.cancelled
        edge.say(_core.Open(request=3, prompt=PROMPT, max_tokens=1))
        assert edge.hear().request == 3


def test_v2_another_tokenizer_is_told_what_differs(shared: tuple[Service, str]) -> None:
    service, address = shared
    other = tiny_vocabulary(16, swap=True)
    with Edge(address, service) as edge:
        edge.say(
            _core.Hello(tokenizer=other.fingerprint, vocabulary=16, drafter="other", chunks=other.chunks)
        )
        fault = edge.hear()
        assert fault.code == FaultCode.tokenizer and "ids 0 to 15" in fault.message
        edge.expect_end()


def test_v3_a_bad_token_leaves_the_server_alive(shared: tuple[Service, str]) -> None:
    service, address = shared
    with Edge(address, service).greet() as edge:
        edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=5))
        edge.hear()
        edge.say(_core.Draft(request=1, round=1, base=4, tokens=[151_936]))
        fault = edge.hear()
        assert (fault.request, fault.code) == (1, FaultCode.request)
        edge.say(_core.Open(request=2, prompt=PROMPT, max_tokens=1))
        assert edge.hear().finish == Finish.length
    serves(address, service)


@pytest.mark.parametrize("frame", [b"", b"\x00", b"\xff" * 400, "text"])
def test_garbage_ends_its_own_session_only(shared: tuple[Service, str], frame: bytes | str) -> None:
    service, address = shared
    for greeted in (False, True):
        with Edge(address, service) as edge:
            if greeted:
                edge.greet()
            edge.socket.send(frame)
            assert edge.hear().code == FaultCode.protocol
            edge.expect_end()
    serves(address, service)


def test_too_many_nodes_and_an_oversized_frame(shared: tuple[Service, str]) -> None:
    service, address = shared
    with Edge(address, service).greet() as edge:
        edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=5))
        edge.hear()
        message = _core.Draft(request=1, round=1, base=4, tokens=[1] * 257)
        edge.socket.send(_core.encode(message, _core.Limits(max_nodes=1000)))
        assert edge.hear().code == FaultCode.protocol
        edge.expect_end()
    with Edge(address, service).greet() as edge:
        with contextlib.suppress(ConnectionClosed):
            edge.socket.send(bytes(service.target.limits.max_bytes + 1))
        edge.expect_end()
        assert edge.socket.close_code == 1009
    serves(address, service)


def test_w1_a_vanished_edge_frees_its_slot(shared: tuple[Service, str]) -> None:
    service, address = shared
    edge = Edge(address, service).greet()
    edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=4000, free_run=True))
    edge.hear()
    wait_until(lambda: service.sessions == 1)
    edge.socket.socket.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: service.sessions == 0 and service.scheduler.waiting == 0)
    edge.close()
    serves(address, service)


def test_silent_connections_are_ended() -> None:
    with running(handshake_timeout=0.2) as (service, address), Edge(address, service) as edge:
        assert "no Hello within 0.2 s" in edge.hear().message
        edge.expect_end()
    with running(idle_timeout=0.3) as (service, address), Edge(address, service).greet() as edge:
        assert edge.hear() == _core.Close(reason="idle for 0.3 s")
        edge.expect_end()


def test_the_token_is_asked_for_before_the_upgrade() -> None:
    with running(Listener(port=0, keys=Keyring.of("s3cret"))) as (service, address):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret"}):
            with pytest.raises(InvalidStatus) as refused:
                Edge(address, service, additional_headers=headers)
            assert refused.value.response.status_code == 401
        assert get(address, "/metrics")[0] == 401
        assert get(address, "/healthz")[0] == 200
        with Edge(address, service, additional_headers={"Authorization": "Bearer s3cret"}) as edge:
            edge.greet()


def test_one_session_too_many_is_busy_and_the_limit_lifts() -> None:
    with running(max_sessions=1) as (service, address):
        with Edge(address, service).greet(), Edge(address, service) as second:
            second.hello()
            fault = second.hear()
            assert fault.code == FaultCode.busy and fault.retry_after_ms > 0
            second.expect_end()
        wait_until(lambda: service.sessions == 0)
        serves(address, service)


def get(address: str, path: str) -> tuple[int, str]:
    client = http.client.HTTPConnection(address.split("/")[2], timeout=TIMEOUT)
    with contextlib.closing(client):
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, answer.read().decode()


def test_health_and_metrics(shared: tuple[Service, str]) -> None:
    service, address = shared
    serves(address, service)
    status, body = get(address, "/healthz")
    health = json.loads(body)
    assert status == 200 and health["status"] == "ok" and health["model"] == "scripted"
    assert health["vocabulary"] == 16 and health["fingerprint"] == service.target.fingerprint.hex()[:8]
    status, body = get(address, "/metrics")
    assert status == 200
    assert "acespec_cloud_committed_tokens_total" in body and "acespec_cloud_open_sessions" in body
    assert get(address, "/nothing")[0] == 404


def test_pacing_pads_every_forward_and_reports_it() -> None:
    with running(pacing=Pacing(40, 10)) as (service, address):

        def queued_us() -> int:
            with Edge(address, service).greet() as edge:
                edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=50))
                assert edge.hear().verify_us >= 40_000
                started = time.monotonic()
                edge.say(_core.Draft(request=1, round=1, base=4, tokens=[1, 2, 3]))
                verdict = edge.hear()
                assert verdict.verify_us >= 70_000 and time.monotonic() - started >= 0.07
                return int(verdict.queue_us)

        def is_no_forward(microseconds: int) -> None:
            assert microseconds < 40_000

        steady(queued_us, is_no_forward)


def test_the_server_stops_with_sessions_open() -> None:
    with running() as (service, address):
        edge = Edge(address, service).greet()
        edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=4000, free_run=True))
        edge.hear()
    with contextlib.suppress(ConnectionClosed):
        while True:
            edge.socket.recv(timeout=TIMEOUT)
    edge.close()
    assert service.sessions == 0
