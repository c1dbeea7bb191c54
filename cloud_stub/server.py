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
from acespec_edge.listening import address_of, is_loopback, listen
from cloud_stub.app import build_app
from cloud_stub.service import Service

_PING_INTERVAL = 5.0
_PING_TIMEOUT = 10.0
_SHUTDOWN_TIMEOUT = 5
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
        super().__init__(
            uvicorn.Config(
                build_app(service, listener.token),
                ws="websockets-sansio",
                ws_max_size=service.target.limits.max_bytes,
                ws_ping_interval=_PING_INTERVAL,
                ws_ping_timeout=_PING_TIMEOUT,
                ws_per_message_deflate=False,
                ssl_certfile=listener.tls_cert,
                ssl_keyfile=listener.tls_key,
                timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT,
                log_level="warning",
                access_log=False,
                server_header=False,
            )
        )

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
