"""Who may come in: API keys, and without them this machine alone."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from acespec_edge.errors import UsageError
from acespec_edge.gateway.errors import ApiError
from acespec_edge.gateway.sse import error_answer
from acespec_edge.listening import is_loopback

MAX_KEYS: Final = 1000

OPEN_PATHS: Final = frozenset({"/healthz"})
"""What needs no key."""


def read_keys(path: Path) -> list[str]:
    """The API keys in a file, one a line; blank lines and lines that begin with # are left out.

    Raises UsageError for a file that cannot be read, holds no key or more than MAX_KEYS, or one that no
    Authorization header can bear.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"api_key_file {str(path)!r} cannot be read: {error}") from error
    keys = []
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        if not line.isascii() or not line.isprintable() or " " in line:
            raise UsageError(
                f"api_key_file {str(path)!r}: line {number} has characters that no key has: printable ASCII "
                "without blanks is right"
            )
        keys.append(line)
    if not 0 < len(keys) <= MAX_KEYS:
        raise UsageError(f"api_key_file {str(path)!r} holds {len(keys)} keys: 1 to {MAX_KEYS} are right")
    return keys


class Guard:
    """Lets a request through to ``app`` when it bears one of ``keys``, compared in constant time.

    Without keys, a request must name this machine as its host: else a page in a browser here, whose own host
    name leads to this address, could use the model.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = None
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            problem = self._problem(Headers(scope=scope))
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await error_answer(problem)(scope, receive, send)

    def _problem(self, headers: Headers) -> ApiError | None:
        if not self._keys:
            host = _host_name(headers.get("host", ""))
            if is_loopback(host):
                return None
            return ApiError(
                403, f"Host is {host!r}: without API keys only names of this machine, as localhost, are right"
            )
        scheme, _, given = headers.get("authorization", "").partition(" ")
        shown = given.strip().encode()
        # Every key is looked at, so that the time tells nothing of which ones come close.
        matches = [hmac.compare_digest(shown, key) for key in self._keys]
        if scheme.lower() == "bearer" and any(matches):
            return None
        what = "the API key is not one of this gateway's" if given else "an API key is needed"
        return ApiError(401, f"{what}: send Authorization: Bearer KEY", code="invalid_api_key")


def _host_name(host: str) -> str:
    """The host without its port, and an IPv6 address without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host
