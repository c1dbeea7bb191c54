"""The listening socket around the application."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from acespec_edge.errors import UsageError
from cloud_stub.app import build_app
from cloud_stub.service import Service

_PING_INTERVAL = 5.0
_PING_TIMEOUT = 10.0
_SHUTDOWN_TIMEOUT = 5


@dataclass(frozen=True, slots=True)
class Listener:
    """Where to listen and who may come in. ``port`` 0 takes a free one; ``token`` None lets everybody in.

    Raises UsageError when others than this machine can reach ``host`` and there is no token, and for half
    a TLS pair.
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

    def bind(self) -> socket.socket:
        """A bound socket. Raises UsageError when the address cannot be had."""
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {self.host}:{self.port}: {error.strerror or error}"
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
        """Listens and serves until SIGINT or SIGTERM (in the main thread) or until ``should_exit`` is
        set.
        """
        with contextlib.suppress(KeyboardInterrupt):  # raised again by uvicorn after a clean end
            super().run(sockets or [self._listener.bind()])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to accept, then reports the address."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            scheme = "ws" if self._listener.tls_cert is None else "wss"
            self._on_ready(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/v1/spec")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
