"""Clients that are slow, or many: what they hold is bounded, and others go on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from acespec_edge import _core
from acespec_edge.http_connection import HttpConnection
from tests.clock import LIMIT, wait_until
from tests.cloud.bare import CONTINUATION, PING, UPGRADE, Bare, frame
from tests.cloud.live import PROMPT, TIMEOUT, Edge, Honest, running


def dribble(bare: Bare, data: bytes, again: bytes, over: Callable[[], bool] = lambda: False) -> None:
    """Sends a byte at a time, ``again`` over and over, until it is ``over`` or the server has hung up."""
    bare.socket.settimeout(0.02)
    deadline = time.monotonic() + LIMIT
    while not over():
        assert time.monotonic() < deadline, "the server keeps a slow client for ever"
        with contextlib.suppress(TimeoutError):
            try:
                bare.socket.sendall(data[:1])
                received = bare.socket.recv(65536)
            except ConnectionError:
                return
            if not received:
                return
            bare.keep(received)
        data = data[1:] or again


def test_a_slow_loris_in_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[HttpConnection] = []
    give_up = HttpConnection._give_up

    def seen(self: HttpConnection, answered: object) -> None:
        give_up(self, answered)
        looked.append(self)

    monkeypatch.setattr(HttpConnection, "_give_up", seen)
    monkeypatch.setattr("acespec_edge.http_connection._HEAD_TIMEOUT", 0.5)
    with running() as (service, address), Edge(address, service).greet() as edge:
        with Bare(address, upgrade=False) as bare:
            dribble(bare, UPGRADE[:-2], again=b"X: y\r\n")
        wait_until(lambda: len(looked) == 2)
        edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=1))
        assert edge.hear().tokens, "the time for a head is none of a session's"


@pytest.mark.parametrize("greeted", [False, True])
def test_a_slow_loris_in_its_messages(greeted: bool) -> None:
    """Pings and fragments that never end a message are no signs of life."""
    options = {"idle_timeout": 0.5} if greeted else {"handshake_timeout": 0.5}
    with running(**options) as (service, address), Bare(address) as bare:
        if greeted:
            bare.greet(service)
        dribble(
            bare,
            frame(b"x", final=False),
            again=frame(b"", PING) + frame(b"y", CONTINUATION, final=False),
            over=lambda: service.counters.read()["sent_bytes"] > 0 and service.sessions == 0,
        )
        bare.socket.settimeout(TIMEOUT)
        (end,) = bare.rest()
        assert isinstance(end, _core.Close if greeted else _core.Fault)


def test_more_connections_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud_stub.server._SPARE_CONNECTIONS", 3)
    with running(max_sessions=2) as (service, address):
        honest = Honest(address, service)
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(Bare(address, upgrade=False)) for _ in range(30)]
            aborted = 0
            for bare in idle[10:]:
                bare.socket.settimeout(TIMEOUT)
                with contextlib.suppress(ConnectionError):
                    assert bare.socket.recv(1) == b""
                aborted += 1
            assert aborted == 20
            honest.goes_on()
        honest.close()
        wait_until(lambda: service.sessions == 0)
