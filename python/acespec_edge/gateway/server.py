"""The HTTP server around the application."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from acespec_edge.gateway.app import build_app
from acespec_edge.gateway.listening import Listener
from acespec_edge.gateway.service import Gateway
from acespec_edge.http_connection import MAX_HEAD, HttpConnection
from acespec_edge.keyring import Keyring
from acespec_edge.listening import address_of
from acespec_edge.redaction import discreet

_SHUTDOWN_TIMEOUT: Final = 5
_MAX_CONNECTIONS: Final = 128
"""Each may hold a body of the largest size."""


class GatewayServer(uvicorn.Server):
    """Serves a gateway over HTTP/1.1 until told to exit; then requests in flight end with an error, and the
    runtime is closed."""

    def __init__(
        self,
        gateway: Gateway,
        listener: Listener,
        keys: Keyring | None = None,
        *,
        on_ready: Callable[[str], None] = lambda address: None,
    ) -> None:
        """``on_ready`` hears the address once connections are accepted."""
        self._gateway = gateway
        self._listener = listener
        self._on_ready = on_ready
        discreet("uvicorn.error")
        config = uvicorn.Config(
            build_app(gateway, keys),
            http=HttpConnection,
            ws="none",
            h11_max_incomplete_event_size=MAX_HEAD,
            limit_concurrency=_MAX_CONNECTIONS,
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
            scheme = "http" if self._listener.tls_cert is None else "https"
            self._on_ready(f"{scheme}://{address_of(self.servers[0].sockets[0])}/v1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends what runs first: uvicorn waits for the answers."""
        self._gateway.stop()
        await super().shutdown(sockets)
