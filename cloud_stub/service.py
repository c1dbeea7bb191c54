"""A served target: the model, its worker, and the connections that share them."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from acespec_edge import _core
from cloud_stub.connection import Connection
from cloud_stub.counters import Counters
from cloud_stub.scheduler import Pacing, Scheduler
from cloud_stub.session import Session
from cloud_stub.target import Target, target_of
from cloud_stub.verifiers.base import Verifier


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """``prefill_chunk``: prompt tokens per turn at the model. Times in seconds."""

    pacing: Pacing = field(default_factory=Pacing)
    max_sessions: int = 64
    max_nodes: int = 256
    prefill_chunk: int = 256
    handshake_timeout: float = 10.0
    idle_timeout: float = 600.0
    retry_after: float = 5.0


class Service:
    """Thread-safe. ``close`` ends every session, then the worker."""

    def __init__(self, verifier: Verifier, options: ServiceOptions | None = None) -> None:
        self.options = options or ServiceOptions()
        self.target: Target = target_of(
            verifier,
            max_nodes=self.options.max_nodes,
            handshake_timeout=self.options.handshake_timeout,
            idle_timeout=self.options.idle_timeout,
        )
        self.counters = Counters()
        self.verifier = verifier
        self.sampler = _core.Sampler(self.target.vocabulary)
        self.scheduler = Scheduler(self.options.pacing)
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def sessions(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    def connect(self, send: Callable[[bytes], None], hang_up: Callable[[str], None]) -> Connection:
        """Takes in a new connection.

        ``send`` and ``hang_up`` are called from any thread, must not block, and must not call back. One
        session too many is told to come back later and hung up on.
        """
        session = Session(self.target, secrets.token_bytes(16), time.monotonic())
        connection = Connection(self, session, send, hang_up, self._forget)
        with self._lock:
            admitted = not self._closed and len(self._connections) < self.options.max_sessions
            if admitted:
                self._connections.add(connection)
                self.counters.add(sessions=1)
        if not admitted:
            self.counters.add(refused_sessions=1)
            connection.turn_away(self.options.retry_after)
        return connection

    def close(self) -> None:
        """Says goodbye to every edge and stops the worker. Idempotent."""
        with self._lock:
            self._closed = True
            connections = list(self._connections)
        for connection in connections:
            connection.close("the cloud is shutting down")
        self.scheduler.close()

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            self._connections.discard(connection)
