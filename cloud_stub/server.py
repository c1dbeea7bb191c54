"""The listening socket around the application."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from acespec_edge.errors import UsageError
from acespec_edge.http_connection import MAX_HEAD, HttpConnection
from acespec_edge.keyring import Keyring
from acespec_edge.listening import address_of, is_loopback, listen
from acespec_edge.redaction import discreet
from acespec_edge.tls import server_context
from cloud_stub.app import build_app
from cloud_stub.service import Service

_PING_INTERVAL = 5.0
_PING_TIMEOUT = 10.0
_SHUTDOWN_TIMEOUT = 5
_SPARE_CONNECTIONS = 64
"""Beside those of sessions: for /healthz and /metrics, and to tell edges that there is no room."""
_UNACKNOWLEDGED_MS = int(1000 * (_PING_INTERVAL + _PING_TIMEOUT))


@dataclass(frozen=True, slots=True)
class Listener:
    """Where to listen and who may come in. ``port`` 0 takes a free one; ``keys`` None lets everybody in. The
    ``tls`` files: see tls.server_context.

    Raises UsageError when others than this machine can reach ``host`` and there are no keys, and for TLS
    files that cannot be used.
    """

    host: str = "127.0.0.1"
    port: int = 8443
    keys: Keyring | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None

    def __post_init__(self) -> None:
        if self.keys is None and not is_loopback(self.host):
            raise UsageError(
                f"host is {self.host!r}, which others can reach, and there is no token file: anybody could "
                "use this model. Give --token-file, or listen on 127.0.0.1"
            )
        self.tls()

    def tls(self) -> ssl.SSLContext | None:
        """How it is encrypted, if it is."""
        return server_context(self.tls_cert, self.tls_key, self.tls_client_ca)

    def bind(self) -> socket.socket:
        """A listening socket, which gives an edge up as soon as its pings do. Raises UsageError when the
        address cannot be had."""
        return listen(self.host, self.port, unacknowledged_ms=_UNACKNOWLEDGED_MS)


class CloudServer(uvicorn.Server):
    """Serves a service over HTTP and WebSocket until told to exit. Messages are small and binary, so
    compression is off; a dead link is found by pings within their interval and time-out together (15 s).
    """

    def __init__(
        self, service: Service, listener: Listener, *, on_ready: Callable[[str], None] = lambda address: None
    ) -> None:
        """``on_ready`` hears the address once connections are accepted."""
        self._listener = listener
        self._on_ready = on_ready
        discreet("uvicorn.error")
        config = uvicorn.Config(
            build_app(service, listener.keys),
            http=HttpConnection,
            h11_max_incomplete_event_size=MAX_HEAD,
            ws="websockets-sansio",
            ws_max_size=service.target.limits.max_bytes,
            ws_ping_interval=_PING_INTERVAL,
            ws_ping_timeout=_PING_TIMEOUT,
            ws_per_message_deflate=False,
            limit_concurrency=service.options.max_sessions + _SPARE_CONNECTIONS,
            timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT,
            log_level="warning",
            access_log=False,
            server_header=False,
        )
        config.load()
        config.ssl = listener.tls()
        super().__init__(config)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until SIGINT or SIGTERM (in the main thread) or until ``should_exit`` is set.

        ``sockets``: listening already, closed at the end; the listener binds one unless given.
        """
        with contextlib.suppress(KeyboardInterrupt):  # raised again by uvicorn after a clean end
            super().run(sockets or [self._listener.bind()])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to accept, then reports the address."""
        await super().startup(sockets)
        if self.started:
            scheme = "ws" if self._listener.tls_cert is None else "wss"
            self._on_ready(f"{scheme}://{address_of(self.servers[0].sockets[0])}/v1/spec")
