"""A served target: the model, its worker, and the connections that share them."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from acespec_edge import _core
from acespec_edge.errors import UsageError
from acespec_edge.keyring import Key
from cloud_stub.budget import KvBudget
from cloud_stub.clients import Client
from cloud_stub.connection import SHUTTING_DOWN, Connection
from cloud_stub.continuation import SelfDrafting
from cloud_stub.counters import Counters
from cloud_stub.prefix_store import Owner, PrefixStore
from cloud_stub.scheduler import Pacing, Scheduler
from cloud_stub.session import Session
from cloud_stub.session_contexts import SessionContexts
from cloud_stub.target import Target, target_of
from cloud_stub.verifiers.base import Verifier

_DISPLACED = "the edge has come back on another connection"


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """``prefill_chunk``: prompt tokens per turn at the model. ``kv_tokens``: tokens that the running requests
    may hold together; None: full contexts for an eighth of the sessions. ``keep_kv``: for how long a request
    that has ended leaves its KV, as far as the running ones leave room; 0: not at all. Times in seconds.
    """

    pacing: Pacing = field(default_factory=Pacing)
    max_sessions: int = 64
    kv_tokens: int | None = None
    keep_kv: float = 300.0
    max_nodes: int = 256
    prefill_chunk: int = 256
    handshake_timeout: float = 10.0
    idle_timeout: float = 600.0
    session_timeout: float = 86_400.0
    retry_after: float = 5.0


class Service:
    """Thread-safe. ``close`` ends every session, then the worker. Raises UsageError for a ``kv_tokens`` that
    is not enough for one request.
    """

    def __init__(
        self,
        verifier: Verifier,
        options: ServiceOptions | None = None,
        self_drafting: SelfDrafting | None = None,
    ) -> None:
        self.options = options or ServiceOptions()
        self.target: Target = target_of(
            verifier,
            max_nodes=self.options.max_nodes,
            handshake_timeout=self.options.handshake_timeout,
            idle_timeout=self.options.idle_timeout,
            session_timeout=self.options.session_timeout,
            keep_kv=self.options.keep_kv,
        )
        self.kv = KvBudget(self._kv_capacity())
        self.prefill_chunk = self.options.prefill_chunk
        self.retry_after = self.options.retry_after
        self.counters = Counters()
        self.verifier = verifier
        self.self_drafting = self_drafting
        self.sampler = _core.Sampler(self.target.vocabulary)
        self.store = PrefixStore(self.kv, self.options.keep_kv, lambda units: self.scheduler.submit(units))
        self.scheduler = Scheduler(self.options.pacing, self.store.expire)
        self.compiler = ThreadPoolExecutor(1, thread_name_prefix="acespec-grammars")
        self._connections: dict[Connection, Client] = {}
        self._admitted: set[Connection] = set()
        self._clients: dict[bytes, Client] = {}
        self._anybody = Client({}, self.options.max_nodes, 0.0)
        self._lock = threading.Lock()
        self._closed = False
        self.draining = False
        """No request begins any more."""

    @property
    def sessions(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    def connect(
        self, send: Callable[[bytes], None], hang_up: Callable[[str], None], key: Key | None = None
    ) -> Connection:
        """Takes in a new connection, of the bearer of ``key``; what is kept of its requests is of use to
        that bearer alone.

        ``send`` and ``hang_up`` are called from any thread, must not block, and must not call back. One
        session too many, of all or of the key's, is told so when it has said Hello, and hung up on: only then
        it is known whether it takes the place of another.
        """
        now = time.monotonic()
        with self._lock:
            client = self._client(key, now)
        target = replace(self.target, max_context=client.context(self.target.max_context))
        name = secrets.token_bytes(16)
        contexts = SessionContexts(
            self.store, Owner("" if key is None else key.digest.hex(), name), self._displace
        )
        session = Session(
            target, name, now, contexts, client.spend, lambda: self._admit(connection), self.retry_after
        )
        connection = Connection(self, session, contexts, send, hang_up, self._forget)
        with self._lock:
            going_down = self._going_down
            if not going_down:
                self._connections[connection] = client
        if going_down:
            self.counters.add(refused_sessions=1)
            connection.turn_away(SHUTTING_DOWN)
        return connection

    def drain(self) -> bool:
        """Admits no session and begins no request any more, and says goodbye to edges that run none; whether
        no edge is left. To be called until it is so."""
        with self._lock:
            self.draining = True
            connections = list(self._connections)
        for connection in connections:
            connection.close(SHUTTING_DOWN, running=False)
        return not connections

    def dismiss(self) -> None:
        """Says goodbye to every edge, and admits none any more. Idempotent."""
        with self._lock:
            self._closed = True
            connections = list(self._connections)
        for connection in connections:
            connection.close(SHUTTING_DOWN)

    def close(self) -> None:
        """Says goodbye to every edge and stops the worker. Idempotent."""
        self.dismiss()
        self.compiler.shutdown(wait=True, cancel_futures=True)
        self.scheduler.close()

    @property
    def _going_down(self) -> bool:
        return self._closed or self.draining

    def _admit(self, connection: Connection) -> str | None:
        """Counts a session that has said Hello; says why it may not begin, if so, and counts nothing."""
        with self._lock:
            refusal = self._refusal() or self._connections[connection].enter()
            if refusal is None:
                self._admitted.add(connection)
        self.counters.add(sessions=refusal is None, refused_sessions=refusal is not None)
        return refusal

    def _refusal(self) -> str | None:
        if self._going_down:
            return SHUTTING_DOWN
        if len(self._admitted) >= self.options.max_sessions:
            return f"{self.options.max_sessions} sessions are open, which is this cloud's limit"
        return None

    def _client(self, key: Key | None, now: float) -> Client:
        """The bearer's. Sessions that were opened under other limits of the key keep those."""
        if key is None:
            return self._anybody
        client = self._clients.get(key.digest)
        if client is None or client.limits != key.limits:
            client = self._clients[key.digest] = Client(key.limits, self.options.max_nodes, now)
        return client

    def _kv_capacity(self) -> int:
        context, given = self.target.max_context, self.options.kv_tokens
        if given is None:
            return context * -(-self.options.max_sessions // 8)
        if given < context:
            raise UsageError(
                f"kv_tokens is {given}, less than one request may take: max_context ({context}) or more "
                "would be right, or a smaller max_context"
            )
        return given

    def _displace(self, owner: Owner, by: SessionContexts) -> bool:
        # Only a connection that is still greeting displaces another, and only one past that, whose key an
        # edge can know, is displaced: so no two wait for each other.
        with self._lock:
            others = [one for one in self._connections if one.contexts.owner == owner]
        for other in others:
            if other.contexts is not by:
                other.close(_DISPLACED)
                # Its place is free at once, and not when its socket is.
                self._forget(other)
        return bool(others)

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            client = self._connections.pop(connection, None)
            if client is not None and connection in self._admitted:
                self._admitted.remove(connection)
                client.leave()
