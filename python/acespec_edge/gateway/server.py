"""The HTTP server around the application."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from acespec_edge.gateway.app import build_app
from acespec_edge.gateway.listening import Listener
from acespec_edge.gateway.service import Gateway
from acespec_edge.http_connection import MAX_HEAD, HttpConnection
from acespec_edge.keyring import Keyring
from acespec_edge.redaction import discreet
from acespec_edge.serving import DRAIN_SECONDS, DrainingServer

_SHUTDOWN_TIMEOUT: Final = 5
_MAX_CONNECTIONS: Final = 128
"""Each may hold a body of the largest size."""


class GatewayServer(DrainingServer):
    """Serves a gateway over HTTP/1.1 until told to exit; then requests in flight end with an error, and the
    runtime is closed. Drained, they end by themselves first."""

    def __init__(
        self,
        gateway: Gateway,
        listener: Listener,
        keys: Keyring | None = None,
        *,
        on_ready: Callable[[str], None] = lambda address: None,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        """``on_ready`` hears the address once connections are accepted."""
        self._gateway = gateway
        discreet("uvicorn.error")
        config = uvicorn.Config(
            build_app(gateway, keys),
            http=HttpConnection,
            ws="none",
            h11_max_incomplete_event_size=MAX_HEAD,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
        )
        scheme = "http" if listener.tls_cert is None else "https"
        super().__init__(
            config,
            gateway,
            listener,
            address=scheme + "://{}/v1",
            on_ready=on_ready,
            drain_seconds=drain_seconds,
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends what runs first: uvicorn waits for the answers."""
        self._gateway.stop()
        await super().shutdown(sockets)
