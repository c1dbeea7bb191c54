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
from acespec_edge.listening import is_loopback, listen
from acespec_edge.serving import DRAIN_SECONDS, DrainingServer
from cloud_stub.app import build_app
from cloud_stub.service import Service

_PING_INTERVAL = 5.0
_PING_TIMEOUT = 10.0
_SHUTDOWN_TIMEOUT = 5
_GOODBYE_TIMEOUT = 2.0
"""Seconds that edges get to take the last message."""
_GOODBYE_POLL = 0.02
_UNACKNOWLEDGED_MS = int(1000 * (_PING_INTERVAL + _PING_TIMEOUT))


@dataclass(frozen=True, slots=True)
class Listener:
    """Where to listen and who may come in. ``port`` 0 takes a free one; ``token`` None lets everybody in.

    Raises UsageError when others than this machine can reach ``host`` and there is no token, for half a TLS
    pair, and for one that cannot be used.
    """

    host: str = "127.0.0.1"
    port: int = 8443
    token: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise UsageError(
                f"host is {self.host!r}, which others can reach, and there is no token file: anybody could "
                "use this model. Give --token-file, or listen on 127.0.0.1"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("TLS needs both a certificate and its key: give --tls-cert and --tls-key")
        for name, path in (("tls_cert", self.tls_cert), ("tls_key", self.tls_key)):
            if path is not None and not path.is_file():
                raise UsageError(f"{name} is {str(path)!r}: there is no such file")
        self._check_certificate()

    def bind(self) -> socket.socket:
        """A listening socket, which gives an edge up as soon as its pings do. Raises UsageError when the
        address cannot be had."""
        return listen(self.host, self.port, unacknowledged_ms=_UNACKNOWLEDGED_MS)

    def _check_certificate(self) -> None:
        if self.tls_cert is None:
            return
        try:
            # An empty password, so that OpenSSL does not ask for that of an encrypted key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key, password="")
        except OSError as error:
            raise UsageError(
                f"tls_cert {str(self.tls_cert)!r} and tls_key {str(self.tls_key)!r} cannot be used: {error}; "
                "a PEM chain and its own key without a password would be right"
            ) from error


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
        config = uvicorn.Config(
            build_app(service, listener.token),
            ws="websockets-sansio",
            ws_max_size=service.target.limits.max_bytes,
            ws_ping_interval=_PING_INTERVAL,
            ws_ping_timeout=_PING_TIMEOUT,
            ws_per_message_deflate=False,
            ssl_certfile=listener.tls_cert,
            ssl_keyfile=listener.tls_key,
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
