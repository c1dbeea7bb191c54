"""The listening socket around the application."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from acespec_edge.errors import UsageError
from acespec_edge.http_connection import MAX_HEAD, HttpConnection
from acespec_edge.keyring import Keyring
from acespec_edge.listening import is_loopback, listen
from acespec_edge.redaction import discreet
from acespec_edge.serving import DRAIN_SECONDS, DrainingServer
from acespec_edge.tls import server_context
from cloud_stub.app import build_app
from cloud_stub.service import Service

_PING_INTERVAL = 5.0
_PING_TIMEOUT = 10.0
_SHUTDOWN_TIMEOUT = 5
_GOODBYE_TIMEOUT = 2.0
"""Seconds that edges get to take the last message."""
_GOODBYE_POLL = 0.02
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


class CloudServer(DrainingServer):
    """Serves a service over HTTP and WebSocket until told to exit; then every edge is told, too. Drained,
    running requests end first. Messages are small and binary, so compression is off; a dead link is found by
    pings within their interval and time-out together (15 s).
    """

    def __init__(
        self,
        service: Service,
        listener: Listener,
        *,
        on_ready: Callable[[str], None] = lambda address: None,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        """``on_ready`` hears the address once connections are accepted."""
        self._service = service
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
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
        )
        scheme = "ws" if listener.tls_cert is None else "wss"
        super().__init__(
            config,
            service,
            listener,
            address=scheme + "://{}/v1/spec",
            on_ready=on_ready,
            drain_seconds=drain_seconds,
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Says goodbye first, while there are connections to say it on."""
        self._service.dismiss()
        deadline = time.monotonic() + _GOODBYE_TIMEOUT
        while self._service.sessions and time.monotonic() < deadline:
            await asyncio.sleep(_GOODBYE_POLL)
        await super().shutdown(sockets)
