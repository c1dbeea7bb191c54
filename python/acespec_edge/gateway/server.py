"""The HTTP server around the application."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from acespec_edge.gateway.app import build_app
from acespec_edge.gateway.listening import Listener
from acespec_edge.gateway.service import Gateway
from acespec_edge.serving import DRAIN_SECONDS, DrainingServer

_SHUTDOWN_TIMEOUT: Final = 5
_MAX_CONNECTIONS: Final = 128
"""Each may hold a body of the largest size."""
_MAX_HEAD: Final = 64 << 10
"""Bytes of a request's line and headers."""

_HEAD_TIMEOUT: Final = 30.0
"""Seconds for them to arrive: from the connection's begin, or from the answer before."""


class GatewayServer(DrainingServer):
    """Serves a gateway over HTTP/1.1 until told to exit; then requests in flight end with an error, and the
    runtime is closed. Drained, they end by themselves first."""

    def __init__(
        self,
        gateway: Gateway,
        listener: Listener,
        keys: Sequence[str] = (),
        *,
        on_ready: Callable[[str], None] = lambda address: None,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        """``on_ready`` hears the address once connections are accepted."""
        self._gateway = gateway
        config = uvicorn.Config(
            build_app(gateway, keys),
            http=_Connection,
            ws="none",
            h11_max_incomplete_event_size=_MAX_HEAD,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
        )
        super().__init__(
            config,
            gateway,
            listener,
            address="http://{}/v1",
            on_ready=on_ready,
            drain_seconds=drain_seconds,
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends what runs first: uvicorn waits for the answers."""
        self._gateway.stop()
        await super().shutdown(sockets)


class _Connection(H11Protocol):
    """uvicorn's connection, which is given up when the head of a request takes too long."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_head()

    def _expect_head(self) -> None:
        answered = self.cycle
        self.loop.call_later(_HEAD_TIMEOUT, self._give_up, answered)

    def _give_up(self, answered: object) -> None:
        # Another cycle than the one that was answered is a request whose head has come.
        if self.cycle is answered and not self.transport.is_closing():
            self.transport.close()
