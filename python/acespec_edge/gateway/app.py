"""The ASGI application: OpenAI's endpoints under /v1, /healthz and /metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from acespec_edge.errors import AcespecError
from acespec_edge.gateway.access import Guard, key_of
from acespec_edge.gateway.answers import Form, stream_answer, whole_answer
from acespec_edge.gateway.body import read_object
from acespec_edge.gateway.chat import chat_form, chat_jobs
from acespec_edge.gateway.completions import completion_form, completion_jobs
from acespec_edge.gateway.errors import ApiError, api_error
from acespec_edge.gateway.metrics import CONTENT_TYPE, GatewayMetrics
from acespec_edge.gateway.observed import Observed
from acespec_edge.gateway.schema import Asked, ChatRequest, CompletionRequest, parse
from acespec_edge.gateway.service import Gateway, Job
from acespec_edge.gateway.sse import EventStream, JsonAnswer, attended, error_answer
from acespec_edge.keyring import Keyring


def build_app(gateway: Gateway, keys: Keyring | None = None) -> Starlette:
    """The application around ``gateway``, whose runtime it closes when it shuts down. ``keys``: see Guard."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        gateway.stop()
        await asyncio.to_thread(gateway.edge.close)

    async def models(request: Request) -> Response:
        return JsonAnswer({"object": "list", "data": [_model(gateway)]})

    async def model(request: Request) -> Response:
        gateway.check_model(request.path_params["name"])
        return JsonAnswer(_model(gateway))

    async def chat(request: Request) -> Response:
        asked = parse(ChatRequest, await read_object(request))
        form = chat_form(gateway, asked)
        return await _answer(request, gateway, asked, form, lambda: chat_jobs(gateway, asked))

    async def completions(request: Request) -> Response:
        asked = parse(CompletionRequest, await read_object(request))
        form = completion_form(gateway, asked)
        return await _answer(request, gateway, asked, form, lambda: completion_jobs(gateway, asked))

    async def healthz(request: Request) -> Response:
        status = "draining" if gateway.draining else "ok"
        state = {"status": status, "model": gateway.name, "requests": gateway.turns.inside}
        return JsonAnswer(state, status_code=503 if gateway.draining else 200)

    async def metrics(request: Request) -> Response:
        return Response(exported.render(), headers={"Content-Type": CONTENT_TYPE})

    exported = GatewayMetrics(gateway)
    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/healthz", healthz),
            Route("/metrics", metrics),
        ],
        middleware=[Middleware(Observed, metrics=exported), Middleware(Guard, keys=keys)],
        exception_handlers={
            AcespecError: _refuse,
            ApiError: _refuse,
            HTTPException: _refuse_http,
            ClientDisconnect: _nobody,
            Exception: _fail,
        },
        lifespan=lifespan,
    )


async def _answer(
    request: Request,
    gateway: Gateway,
    asked: Asked,
    form: Form,
    prepare: Callable[[], Coroutine[Any, Any, list[Job]]],
) -> Response:
    """What ``asked`` gets, from its place in the waiting room to its end."""
    gateway.check_model(asked.model)
    quota = gateway.quotas.of(key_of(request.scope))
    with contextlib.ExitStack() as place:
        place.enter_context(quota.admitted())
        place.enter_context(gateway.admitted())
        jobs = await attended(request.receive, prepare())
        jobs = [replace(job, charge=quota.charge) for job in jobs]
        if asked.stream:
            usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
            return EventStream(stream_answer(gateway, jobs, form, usage=usage), place.pop_all())
        whole = whole_answer(gateway, jobs, form, stats=bool(asked.acespec_stats))
        return JsonAnswer(await attended(request.receive, whole))


def _model(gateway: Gateway) -> dict[str, object]:
    return {"id": gateway.name, "object": "model", "created": gateway.created, "owned_by": "acespec"}


async def _refuse(request: Request, error: Exception) -> Response:
    return error_answer(api_error(error))


async def _fail(request: Request, error: Exception) -> Response:
    """For a fault of this code: uvicorn, which logs it, closes the connection behind the answer."""
    answer = error_answer(api_error(error))
    answer.headers["Connection"] = "close"
    return answer


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}: {error.detail}"
    answer = error_answer(ApiError(error.status_code, what))
    answer.headers.update(error.headers or {})
    return answer


async def _nobody(request: Request, error: Exception) -> Response:
    """The client is gone; what is returned is not sent."""
    return Response(status_code=400)
