"""uvicorn's HTTP connection, with bounds for clients that are slow or many."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEAD: Final = 64 << 10
"""Bytes of a request's line and headers, for ``h11_max_incomplete_event_size``."""

_HEAD_TIMEOUT: Final = 30.0
"""Seconds for them to arrive: from the connection's begin, or from the answer before."""


class HttpConnection(H11Protocol):
    """Given up when the head of a request takes too long, and at once when there are twice as many as
    ``limit_concurrency``: up to that uvicorn answers with status 503."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > 2 * self.limit_concurrency:
            transport.abort()
        self._expect_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_head()

    def _expect_head(self) -> None:
        answered = self.cycle
        self.loop.call_later(_HEAD_TIMEOUT, self._give_up, answered)

    def _give_up(self, answered: object) -> None:
        # Another cycle than the one that was answered is a request whose head has come; another protocol is
        # a WebSocket, which keeps time by itself.
        if self.cycle is answered and self.transport.get_protocol() is self:
            self.transport.close()
