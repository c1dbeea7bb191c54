"""Who may come in: API keys, and without them this machine alone."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from acespec_edge.gateway.errors import ApiError
from acespec_edge.gateway.quotas import LIMITS
from acespec_edge.gateway.sse import error_answer
from acespec_edge.keyring import Key, Keyring
from acespec_edge.listening import is_loopback

OPEN_PATHS: Final = frozenset({"/healthz"})
"""What needs no key."""

_KEY: Final = "acespec.key"
"""In the scope of a request."""


def read_keys(path: Path) -> Keyring:
    """The API keys in a file; see Keyring.read and LIMITS. Raises UsageError."""
    return Keyring.read(path, "api_key_file", LIMITS)


def key_of(scope: Scope) -> Key | None:
    """The key that a request was let through with; None where none are asked for."""
    key: Key | None = scope.get(_KEY)
    return key


class Guard:
    """Lets a request through to ``app`` when it bears one of ``keys``, which key_of() then tells.

    Without keys, a request must name this machine as its host: else a page in a browser here, whose own host
    name leads to this address, could use the model.
    """

    def __init__(self, app: ASGIApp, keys: Keyring | None) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = None
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            problem = self._problem(scope)
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await error_answer(problem)(scope, receive, send)

    def _problem(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        if self._keys is None:
            host = _host_name(headers.get("host", ""))
            if is_loopback(host):
                return None
            return ApiError(
                403, f"Host is {host!r}: without API keys only names of this machine, as localhost, are right"
            )
        shown = headers.get("authorization", "")
        scope[_KEY] = self._keys.find(shown)
        if scope[_KEY] is not None:
            return None
        what = "the API key is not one of this gateway's" if " " in shown else "an API key is needed"
        return ApiError(401, f"{what}: send Authorization: Bearer KEY", code="invalid_api_key")


def _host_name(host: str) -> str:
    """The host without its port, and an IPv6 address without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host
