"""Around every request: an id for it, a line in the log, and its place in the metrics."""

from __future__ import annotations

import logging
import time
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acespec_edge.gateway.metrics import GatewayMetrics
from acespec_edge.logs import request_id, usable_id

_PATHS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/healthz", "/metrics")
_LOOKS: Final = frozenset({"/healthz", "/metrics"})
_ID_HEADER: Final = "X-Request-Id"

_log: Final = logging.getLogger("acespec.gateway")


class Observed:
    """Gives each request the id that it bears in X-Request-Id, or a new one, sends it back in the answer, and
    logs and counts the answer once it is out."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        identity = usable_id(Headers(scope=scope).get(_ID_HEADER, ""))
        token = request_id.set(identity)
        started = time.monotonic()
        status = 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[_ID_HEADER] = identity
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            seconds = time.monotonic() - started
            path = scope["path"] if scope["path"] in _PATHS else "other"
            self._metrics.answered(path, status, seconds)
            facts = {"method": scope["method"], "path": path, "status": status, "seconds": round(seconds, 3)}
            # Those who look all the time are not worth a line.
            level = logging.DEBUG if path in _LOOKS else logging.INFO
            _log.log(level, "request", extra=facts)
            request_id.reset(token)
