"""The real server on loopback, spoken to with a bare WebSocket client."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from acespec_edge import _core
from acespec_edge.errors import UsageError
from cloud_stub import server as server_module
from cloud_stub.scheduler import Pacing
from cloud_stub.server import CloudServer, Listener, is_loopback
from cloud_stub.service import Service, ServiceOptions
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.cloud.rig import hashed_logits, plain_greedy, tiny_vocabulary

LOGITS = hashed_logits(16)
PROMPT = [1, 2, 3]
TIMEOUT = 10.0
Finish, FaultCode = _core.Finish, _core.FaultCode


@contextlib.contextmanager
def running(token: str | None = None, **options: Any) -> Iterator[tuple[Service, str]]:
    """A server in a thread: the service and its address."""
    service = Service(ScriptedVerifier(LOGITS, tiny_vocabulary()), ServiceOptions(**options))
    ready: queue.Queue[str] = queue.Queue()
    server = CloudServer(service, Listener(port=0, token=token), on_ready=ready.put)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield service, ready.get(timeout=TIMEOUT)
    finally:
        server.should_exit = True
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "the server did not stop"
        assert not service.scheduler._worker.is_alive()


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Service, str]]:
    with running() as pair:
        yield pair


class Edge:
    """A client that sends and receives messages."""

    def __init__(self, address: str, service: Service, **options: Any) -> None:
        self._stack = contextlib.ExitStack()
        opening = connect(address, compression=None, proxy=None, **options)
        self.socket: ClientConnection = self._stack.enter_context(opening)
        self.target = service.target

    def __enter__(self) -> Edge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    def say(self, message: Any) -> None:
        self.socket.send(_core.encode(message))

    def hear(self) -> Any:
        return _core.decode(self.socket.recv(timeout=TIMEOUT))

    def greet(self) -> Edge:
        hello = _core.Hello(
            tokenizer=self.target.fingerprint, vocabulary=16, drafter="bare", chunks=list(self.target.chunks)
        )
        self.say(hello)
        assert isinstance(self.hear(), _core.Welcome)
        return self

    def expect_end(self) -> None:
        with pytest.raises(ConnectionClosed):
            self.socket.recv(timeout=TIMEOUT)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def serves(address: str, service: Service) -> None:
    """Asserts that a new session gets its tokens."""
    with Edge(address, service).greet() as edge:
        edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=1))
        assert edge.hear().tokens == plain_greedy(LOGITS, PROMPT, 1)


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


def test_free_run_and_cancel(shared: tuple[Service, str]) -> None:
    service, address = shared
    expected = plain_greedy(LOGITS, PROMPT, 50)
    with Edge(address, service).greet() as edge:
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


def test_w2_an_edge_that_answers_no_pings_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_PING_INTERVAL", 0.1)
    monkeypatch.setattr(server_module, "_PING_TIMEOUT", 0.2)
    with running() as (service, address):
        host, port = address.split("/")[2].split(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT) as raw:
            raw.sendall(
                b"GET /v1/spec HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            wait_until(lambda: service.sessions == 1)
            wait_until(lambda: service.sessions == 0)


def test_silent_connections_are_ended() -> None:
    with running(handshake_timeout=0.2, idle_timeout=0.3) as (service, address):
        with Edge(address, service) as edge:
            assert "no Hello within 0.2 s" in edge.hear().message
            edge.expect_end()
        with Edge(address, service).greet() as edge:
            assert edge.hear() == _core.Close(reason="idle for 0.3 s")
            edge.expect_end()


def test_the_token_is_asked_for_before_the_upgrade() -> None:
    with running(token="s3cret") as (service, address):
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
    with running(pacing=Pacing(40, 10)) as (service, address), Edge(address, service).greet() as edge:
        edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=50))
        assert edge.hear().verify_us >= 40_000
        started = time.monotonic()
        edge.say(_core.Draft(request=1, round=1, base=4, tokens=[1, 2, 3]))
        verdict = edge.hear()
        assert verdict.verify_us >= 70_000 and time.monotonic() - started >= 0.07
        assert verdict.queue_us < 40_000


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


def test_listening_beyond_this_machine_needs_a_token(tmp_path: Path) -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.8.0.1", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "192.168.0.2", "::", "llm.example.com")] == [False] * 4
    with pytest.raises(UsageError, match=r"0\.0\.0\.0.*token"):
        Listener(host="0.0.0.0")
    assert Listener(host="0.0.0.0", token="t").port == 8443
    with pytest.raises(UsageError, match="certificate and its key"):
        Listener(tls_cert=tmp_path / "cert.pem")
    with pytest.raises(UsageError, match=r"tls_cert .*no such file"):
        Listener(tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem")


def test_a_taken_port_is_named() -> None:
    with Listener(port=0).bind() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"127\.0\.0\.1:{port}"):
            Listener(port=port).bind()
