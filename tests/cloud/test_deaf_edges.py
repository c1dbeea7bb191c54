"""Edges that are connected and do not read: what they cost is bounded."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from acespec_edge import _core
from cloud_stub import app as app_module
from cloud_stub import outbox as outbox_module
from cloud_stub import server as server_module
from cloud_stub.connection import Connection
from cloud_stub.service import Service
from tests.clock import wait_until
from tests.cloud.bare import UPGRADE, frame
from tests.cloud.live import LOCAL, TIMEOUT, running, serves

SMALL = 4096
REFUSED = _core.Open(request=1, prompt=[], max_tokens=1)
"""Each is answered by a Fault of some hundred bytes."""


@contextlib.contextmanager
def deaf(service: Service, address: str) -> Iterator[socket.socket]:
    """An edge past its handshake that reads no more."""
    host, port = address.split("/")[2].split(":")
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        raw.settimeout(TIMEOUT)
        raw.connect((host, int(port)))
        raw.sendall(UPGRADE)
        assert raw.recv(SMALL).startswith(b"HTTP/1.1 101")
        target = service.target
        hello = _core.Hello(tokenizer=target.fingerprint, vocabulary=16, chunks=list(target.chunks))
        raw.sendall(frame(_core.encode(hello)))
        assert raw.recv(SMALL), "a Welcome"
        yield raw


@contextlib.contextmanager
def cramped(**options: Any) -> Iterator[tuple[Service, str]]:
    """A server whose kernel buffers are soon full, and that stays usable."""
    listening = LOCAL.bind()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
    with running(LOCAL, [listening], **options) as (service, address):
        yield service, address
        serves(address, service)


def fill(raw: socket.socket, service: Service, count: int = 2000) -> None:
    """Has the server send more than all buffers hold. It may end the session before it has read all."""
    before = service.counters.read()["faults"]
    with contextlib.suppress(OSError):
        raw.sendall(frame(_core.encode(REFUSED)) * count)
    wait_until(lambda: service.counters.read()["faults"] == before + count or service.sessions == 0)


def test_w2_an_edge_that_answers_no_pings_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    # No less: the handshake must end before.
    monkeypatch.setattr(server_module, "_PING_INTERVAL", 0.5)
    monkeypatch.setattr(server_module, "_PING_TIMEOUT", 1.0)
    with running() as (service, address), deaf(service, address):
        wait_until(lambda: service.sessions == 0)


def test_a_send_that_does_not_end_frees_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "_SEND_TIMEOUT", 0.3)
    with cramped() as (service, address), deaf(service, address) as raw:
        fill(raw, service)
        wait_until(lambda: service.sessions == 0)


def test_an_edge_too_far_behind_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "_MAX_WAITING", 100)
    monkeypatch.setattr(outbox_module, "_SEND_TIMEOUT", 60.0)
    with cramped() as (service, address), deaf(service, address) as raw:
        fill(raw, service)
        wait_until(lambda: service.sessions == 0)


def test_the_end_of_a_session_is_not_waited_for_longer_than_it_lingers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expired: list[Connection] = []
    expire = Connection.expire

    def counted(self: Connection) -> None:
        expired.append(self)
        expire(self)

    monkeypatch.setattr(Connection, "expire", counted)
    monkeypatch.setattr(app_module, "_LINGER", 0.3)
    with cramped(idle_timeout=2.0) as (service, address), deaf(service, address) as raw:
        fill(raw, service)
        wait_until(lambda: service.sessions == 0)
        assert len(expired) < 10, "a deadline that has passed is not waited on"
