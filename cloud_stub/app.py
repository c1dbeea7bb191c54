"""The ASGI application: sessions over /v1/spec, the state in /healthz and /metrics."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from acespec_edge import _core
from acespec_edge.keyring import Key, Keyring
from cloud_stub.counters import DESCRIPTIONS
from cloud_stub.outbox import Outbox
from cloud_stub.service import Service

_LINGER = 5.0
"""Seconds an edge gets to take the last messages of a session that has ended."""


def build_app(service: Service, keys: Keyring | None = None) -> Starlette:
    """The application around ``service``, which it closes when it shuts down.

    ``keys``: one of which the Authorization header must bear for /v1/spec and /metrics; None lets everybody
    in.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    async def spec(websocket: WebSocket) -> None:
        key = _key_of(websocket, keys)
        if key is None and keys is not None:
            await websocket.send_denial_response(_refusal())
            return
        await websocket.accept()
        await _serve(service, websocket, key)

    async def healthz(request: Request) -> Response:
        state = {
            "status": "draining" if service.draining else "ok",
            "model": service.target.name,
            "vocabulary": service.target.vocabulary,
            "fingerprint": service.target.fingerprint.hex()[:8],
            "max_context": service.target.max_context,
            "protocol": _core.PROTOCOL_VERSION,
            "sessions": service.sessions,
        }
        return JSONResponse(state, status_code=503 if service.draining else 200)

    registry = CollectorRegistry()
    registry.register(_ServiceCollector(service))

    async def metrics(request: Request) -> Response:
        if keys is not None and _key_of(request, keys) is None:
            return _refusal()
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    routes = [WebSocketRoute("/v1/spec", spec), Route("/healthz", healthz), Route("/metrics", metrics)]
    return Starlette(routes=routes, lifespan=lifespan)


async def _serve(service: Service, websocket: WebSocket, key: Key | None) -> None:
    """One connection from its upgrade to its end. Frees everything however it ends."""
    outbox = Outbox(websocket)
    connection = service.connect(outbox.put, outbox.end, key)
    reader = asyncio.create_task(websocket.receive())
    try:
        while not (connection.closed or outbox.task.done()):
            timeout = max(0.0, connection.deadline - time.monotonic())
            await asyncio.wait({reader, outbox.task}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():
                connection.expire()
                continue
            message = reader.result()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            if data is None:
                connection.refuse("a text frame arrived: messages are binary")
            else:
                connection.receive(data)
            reader = asyncio.create_task(websocket.receive())
        await asyncio.wait({outbox.task}, timeout=_LINGER)
    finally:
        connection.lost()
        for task in (reader, outbox.task):
            task.cancel()
        await asyncio.wait({reader, outbox.task})


def _key_of(connection: HTTPConnection, keys: Keyring | None) -> Key | None:
    return None if keys is None else keys.find(connection.headers.get("authorization", ""))


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
        reserved = self._service.kv.reserved
        yield GaugeMetricFamily("acespec_cloud_reserved_kv_tokens", "KV reserved by requests", reserved)
        kept = self._service.store.tokens
        yield GaugeMetricFamily("acespec_cloud_kept_kv_tokens", "KV kept of requests that have ended", kept)
        waiting = self._service.scheduler.waiting
        yield GaugeMetricFamily("acespec_cloud_waiting_jobs", "Jobs that wait for the model", waiting)
        for name, value in self._service.counters.read().items():
            yield CounterMetricFamily(f"acespec_cloud_{name}", DESCRIPTIONS[name], value)
        yield from self._service.counters.queue.collect()
        yield from self._service.counters.verify.collect()
