"""The ASGI application: sessions over /v1/spec, the state in /healthz and /metrics."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from acespec_edge import _core
from cloud_stub.counters import DESCRIPTIONS
from cloud_stub.service import Service

_MAX_REASON = 30
"""Characters of a close reason; the protocol allows 123 bytes."""


@dataclass(frozen=True, slots=True)
class _End:
    """Last entry of an outgoing queue."""

    reason: str


def build_app(service: Service, token: str | None = None) -> Starlette:
    """The application around ``service``, which it closes when it shuts down.

    ``token``: what the Authorization header must bear for /v1/spec and /metrics; None lets everybody in.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    async def spec(websocket: WebSocket) -> None:
        if not _authorised(websocket, token):
            await websocket.send_denial_response(_refusal())
            return
        await websocket.accept()
        await _serve(service, websocket)

    async def healthz(request: Request) -> Response:
        return JSONResponse({
            "status": "ok",
            "model": service.target.name,
            "vocabulary": service.target.vocabulary,
            "fingerprint": service.target.fingerprint.hex()[:8],
            "max_context": service.target.max_context,
            "protocol": _core.PROTOCOL_VERSION,
            "sessions": service.sessions,
        })  # fmt: skip

    registry = CollectorRegistry()
    registry.register(_ServiceCollector(service))

    async def metrics(request: Request) -> Response:
        if not _authorised(request, token):
            return _refusal()
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    routes = [WebSocketRoute("/v1/spec", spec), Route("/healthz", healthz), Route("/metrics", metrics)]
    return Starlette(routes=routes, lifespan=lifespan)


async def _serve(service: Service, websocket: WebSocket) -> None:
    """One connection from its upgrade to its end. Frees everything however it ends."""
    loop = asyncio.get_running_loop()
    outgoing: asyncio.Queue[bytes | _End] = asyncio.Queue()

    def put(item: bytes | _End) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server is gone, and so is the edge
            loop.call_soon_threadsafe(outgoing.put_nowait, item)

    connection = service.connect(put, lambda reason: put(_End(reason)))
    writer = asyncio.create_task(_write(websocket, outgoing))
    reader = asyncio.create_task(websocket.receive())
    try:
        while True:
            timeout = max(0.0, connection.deadline - time.monotonic())
            await asyncio.wait({reader, writer}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                break
            if not reader.done():
                connection.expire()
                continue
            message = reader.result()
            if message["type"] == "websocket.disconnect":
                break
            data = message.get("bytes")
            if data is None:
                connection.refuse("a text frame arrived: messages are binary")
            else:
                connection.receive(data)
            reader = asyncio.create_task(websocket.receive())
    finally:
        connection.lost()
        for task in (reader, writer):
            task.cancel()
        await asyncio.wait({reader, writer})


async def _write(websocket: WebSocket, outgoing: asyncio.Queue[bytes | _End]) -> None:
    """Sends what the queue holds, in order, until its end. An edge that does not read answers no pings
    either, and is cut off by the server's ping time-out; that bounds the queue.
    """
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while not isinstance(item := await outgoing.get(), _End):
            await websocket.send_bytes(item)
        await websocket.close(1000, item.reason[:_MAX_REASON])


def _authorised(connection: HTTPConnection, token: str | None) -> bool:
    if token is None:
        return True
    scheme, _, given = connection.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def _refusal() -> Response:
    return PlainTextResponse(
        "a valid bearer token is needed\n", status_code=401, headers={"WWW-Authenticate": "Bearer"}
    )


class _ServiceCollector(Collector):
    """Reads the service's counters when asked."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("acespec_cloud_open_sessions", "Sessions open now", self._service.sessions)
        waiting = self._service.scheduler.waiting
        yield GaugeMetricFamily("acespec_cloud_waiting_jobs", "Jobs that wait for the model", waiting)
        for name, value in self._service.counters.read().items():
            yield CounterMetricFamily(f"acespec_cloud_{name}", DESCRIPTIONS[name], value)
