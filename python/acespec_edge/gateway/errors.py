"""What went wrong, in the form that OpenAI clients read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from acespec_edge.errors import LinkError, PeerError, UsageError

CONTEXT_LENGTH: Final = "context_length_exceeded"

_RETRY_AFTER: Final = 5.0
"""Seconds until a client should try again when nobody has said more."""

_FIELD: Final = re.compile(r"[a-z]\w*(?:\[\d+\]|\.\w+)*(?=:| is | are | has | and | names )")
_TOO_LONG: Final = re.compile(r"(?:the )?prompt has \d+ tokens")
_FIELDS: Final[Mapping[str, str]] = {
    "prompt": "prompt",
    "messages": "messages",
    "tools": "tools",
    "max_tokens": "max_tokens",
    "min_tokens": "min_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "mode": "mode",
    "logprobs": "logprobs",
    "logit_bias": "logit_bias",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "regex": "regex",
    "json_schema": "response_format",
}
"""Fields that messages of the runtime begin with, and what a request calls them."""


class ApiError(Exception):
    """An answer with a status of 400 or more. ``param``: the field of the request that is wrong. ``code``:
    for programs. ``retry_after``: seconds, whole ones are sent.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Those that go with the status."""
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        return headers

    def to_dict(self) -> dict[str, Any]:
        """The body of the answer, or the data of an event in a stream."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code},
        }


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the client's to fix."""
    return ApiError(400, message, param=param, code=code)


def stopping() -> ApiError:
    """503: the gateway is on its way down."""
    return ApiError(503, "the gateway is shutting down", code="shutting_down", retry_after=_RETRY_AFTER)


def api_error(error: BaseException) -> ApiError:
    """What ``error`` is to a client: a UsageError is its own fault (400), a LinkError or PeerError the
    cloud's (503, 502), anything else this device's (500)."""
    if isinstance(error, ApiError):
        return error
    message = str(error)
    if isinstance(error, UsageError):
        if _TOO_LONG.match(message):
            return bad_request(message, code=CONTEXT_LENGTH)
        return bad_request(message, _param(message))
    if isinstance(error, LinkError):
        busy = error.retry_after is not None
        wait = error.retry_after if busy else _RETRY_AFTER
        return ApiError(503, message, code="cloud_busy" if busy else "cloud_lost", retry_after=wait)
    if isinstance(error, PeerError):
        return ApiError(502, message, code="cloud_fault")
    return ApiError(500, f"{type(error).__name__}: {message}", code="engine_error")


def _param(message: str) -> str | None:
    """The field that a message of the runtime names first, as a request calls it."""
    found = _FIELD.match(message)
    if found is None:
        return None
    name = re.split(r"[.\[]", found[0], maxsplit=1)[0]
    known = _FIELDS.get(name)
    return None if known is None else known + found[0][len(name) :]
