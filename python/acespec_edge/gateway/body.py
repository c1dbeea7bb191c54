"""The body of a request, within limits."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

import anyio
from starlette.requests import Request

from acespec_edge.gateway.errors import ApiError, bad_request

MAX_BODY: Final = 8 << 20
"""Bytes."""

_TIMEOUT: Final = 30.0
"""Seconds for the whole body to arrive."""


async def read_object(request: Request, *, most: int = MAX_BODY, timeout: float = _TIMEOUT) -> dict[str, Any]:
    """The JSON object that ``request`` brings; ``most`` bytes are ever held.

    Raises ApiError: 415 for another content type (which a page of another site could send without asking),
    413 for a larger body, 408 for a slower one, 400 for what is no JSON object.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"Content-Type is {kind!r}: it must be application/json")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > most:
        raise _too_large(most)
    data = bytearray()
    with anyio.move_on_after(timeout) as reading:
        async for part in request.stream():
            if len(data) + len(part) > most:
                raise _too_large(most)
            data += part
    if reading.cancelled_caught:
        raise ApiError(408, f"the body did not arrive within {timeout:g} s", code="request_timeout")
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise bad_request(f"the body is not valid JSON: {problem}") from problem
    if not isinstance(value, dict):
        raise bad_request(f"the body is a JSON {type(value).__name__}: it must be an object")
    return value


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is too large: {most:,} bytes are the most", code="body_too_large")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
