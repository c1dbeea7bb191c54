"""Answers as they go over the wire: JSON, and streams of server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Final, TypeVar

import anyio
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from acespec_edge.errors import AcespecError
from acespec_edge.gateway.errors import ApiError, api_error

_Value = TypeVar("_Value")

DONE: Final = b"data: [DONE]\n\n"

_COMMENT: Final = b": waiting\n\n"
_COMMENT_AFTER: Final = 10.0
"""Seconds without an event after which a comment tells whoever is between that the stream lives."""

_SEND_TIMEOUT: Final = 60.0
"""Seconds that a client may take to make room for an event."""

_log: Final = logging.getLogger("acespec.gateway")


def dumps(value: Any) -> bytes:
    """JSON in UTF-8. Halves of surrogate pairs, which only a client's own words have, stay escapes."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def event(value: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + dumps(value) + b"\n\n"


class JsonAnswer(Response):
    """A value as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dumps(content)


def error_answer(error: ApiError) -> Response:
    """An error in OpenAI's form."""
    return JsonAnswer(error.to_dict(), status_code=error.status, headers=error.headers)


async def attended(receive: Receive, work: Coroutine[Any, Any, _Value]) -> _Value:
    """What ``work`` returns, unless the client goes away first: then it is cancelled, and ClientDisconnect
    raised once it has ended. The body of the request must have been read."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.wait({working, watching})
        if working.done() and not working.cancelled():
            working.exception()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Events as ``events`` yields them. The head of the answer goes with the first one, so what fails before
    it has a status of its own and is raised; what fails later is an error event, and the stream ends there.
    Between two events that are long apart go comments, which clients pass over.

    When the client goes away, or reads nothing for too long, ``events`` is closed at once. ``held`` is closed
    at the end, however it comes.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], held: contextlib.ExitStack) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            try:
                await attended(receive, self._stream(send))
            except ClientDisconnect:
                pass
            except _Unread:
                _log.warning("a client took no event for %g s: its request is dropped", _SEND_TIMEOUT)

    async def _stream(self, send: Send) -> None:
        started = False
        async with contextlib.aclosing(self._events), contextlib.aclosing(_lively(self._events)) as lively:
            try:
                async for data in lively:
                    if not started:
                        started = True
                        head = {"status": self.status_code, "headers": self.raw_headers}
                        await send({"type": "http.response.start", **head})
                    await _put(send, data, more=True)
            except Exception as error:
                if not started or isinstance(error, _Unread):
                    raise
                if not isinstance(error, AcespecError | ApiError):
                    _log.exception("a request failed after its answer had begun")
                await _put(send, event(api_error(error).to_dict()), more=True)
            await _put(send, b"", more=False)


async def _lively(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The events, and from the first one on a comment whenever none comes for a while."""
    begun = False
    coming: asyncio.Future[bytes] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({coming}, timeout=_COMMENT_AFTER if begun else None)
            if not done:
                yield _COMMENT
                continue
            came, coming = coming, None
            try:
                data = came.result()
            except StopAsyncIteration:
                return
            begun = True
            yield data
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.wait({coming})


class _Unread(Exception):
    """The client makes no room for what it asked for."""


async def _put(send: Send, data: bytes, *, more: bool) -> None:
    with anyio.move_on_after(_SEND_TIMEOUT) as waiting:
        await send({"type": "http.response.body", "body": data, "more_body": more})
    if waiting.cancelled_caught:
        raise _Unread
