"""The real server on loopback, and a bare WebSocket client."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from acespec_edge import _core
from acespec_edge.serving import DRAIN_SECONDS
from cloud_stub.server import CloudServer, Listener
from cloud_stub.service import Service, ServiceOptions
from cloud_stub.verifiers.base import Verifier
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.cloud.rig import hashed_logits, plain_greedy, tiny_vocabulary

LOGITS = hashed_logits(16)
PROMPT = [1, 2, 3]
_OWN = [7, 7, 7]
TIMEOUT = 10.0
LOCAL = Listener(port=0)


@contextlib.contextmanager
def running(
    listener: Listener = LOCAL, sockets: list[socket.socket] | None = None, **options: Any
) -> Iterator[tuple[Service, str]]:
    """A server in a thread: the service and its address."""
    with served(listener, sockets, **options) as (service, address, _):
        yield service, address


@contextlib.contextmanager
def served(
    listener: Listener = LOCAL,
    sockets: list[socket.socket] | None = None,
    *,
    drain_seconds: float = DRAIN_SECONDS,
    verifier: Verifier | None = None,
    **options: Any,
) -> Iterator[tuple[Service, str, CloudServer]]:
    """The same, and the server. ``verifier``: instead of one of LOGITS."""
    verifier = verifier or ScriptedVerifier(LOGITS, tiny_vocabulary())
    service = Service(verifier, ServiceOptions(**options))
    ready: queue.Queue[str] = queue.Queue()
    server = CloudServer(service, listener, on_ready=ready.put, drain_seconds=drain_seconds)
    thread = threading.Thread(target=server.run, args=[sockets])
    thread.start()
    try:
        yield service, ready.get(timeout=TIMEOUT), server
    finally:
        server.should_exit = True
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "the server did not stop"
        assert not service.scheduler._worker.is_alive()


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

    def hello(self) -> None:
        hello = _core.Hello(
            tokenizer=self.target.fingerprint, vocabulary=16, drafter="bare", chunks=list(self.target.chunks)
        )
        self.say(hello)

    def greet(self) -> Edge:
        self.hello()
        assert isinstance(self.hear(), _core.Welcome)
        return self

    def expect_end(self) -> None:
        with pytest.raises(ConnectionClosed):
            self.socket.recv(timeout=TIMEOUT)


def serves(address: str, service: Service) -> None:
    """Asserts that a new session gets its tokens."""
    with Edge(address, service).greet() as edge:
        edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=1))
        assert edge.hear().tokens == plain_greedy(LOGITS, PROMPT, 1)


class Honest:
    """A session that is open while others misbehave; its text is checked at the end."""

    def __init__(self, address: str, service: Service) -> None:
        self._edge = Edge(address, service).greet()
        self._edge.say(_core.Open(request=1, prompt=_OWN, max_tokens=1000))
        self._text: list[int] = list(self._edge.hear().tokens)
        self._round = 0

    def goes_on(self) -> None:
        """Asserts that it gets the next tokens of its own text."""
        expected = plain_greedy(LOGITS, _OWN, len(self._text) + 3)
        self._round += 1
        base = len(_OWN) + len(self._text)
        first = 4 * self._round
        draft = _core.Draft(
            request=1, round=self._round, base=base, first_node=first, tokens=expected[len(self._text) :][:2]
        )
        self._edge.say(draft)
        verdict = self._edge.hear()
        assert verdict.accepted_node == first + 1 and verdict.tokens == expected[-1:]
        self._text = expected

    def close(self) -> None:
        self._edge.close()
