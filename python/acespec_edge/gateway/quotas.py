"""What the holder of one API key may take of the gateway, and has taken."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from acespec_edge.gateway.errors import ApiError
from acespec_edge.keyring import Key
from acespec_edge.token_bucket import TokenBucket

LIMITS: Final = ("requests", "tokens_per_minute")
"""Names of what a key may be limited in: requests at a time, those that wait included; tokens of prompts and
output."""

_RETRY_AFTER: Final = 1.0
"""Seconds: when another request of the key ends is not known."""


class Quota:
    """The requests of one key together. For one event loop; O(1).

    A request begins while tokens are left, and its own are counted as they come: the last one before the
    limit may overdraw it, and the next one waits for that.
    """

    def __init__(self, key: Key | None, clock: Callable[[], float]) -> None:
        self.limits = {} if key is None else dict(key.limits)
        self._name = "" if key is None else key.name
        self._clock = clock
        self._inside = 0
        rate = self.limits.get("tokens_per_minute")
        self._tokens = None if rate is None else TokenBucket(rate / 60, rate, clock())

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """A request of the key, while the block runs. Raises ApiError (429) beyond a limit."""
        most = self.limits.get("requests")
        if most is not None and self._inside >= most:
            raise _beyond(f"the key {self._name!r} has {most} requests at a time, its limit", _RETRY_AFTER)
        if self._tokens is not None and (wait := self._tokens.wait(1, self._clock())) > 0:
            rate = self.limits["tokens_per_minute"]
            raise _beyond(f"the key {self._name!r} has used its {rate} tokens per minute", wait)
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def charge(self, tokens: int) -> None:
        """Counts tokens."""
        if self._tokens is not None:
            self._tokens.spend(tokens, self._clock())


class Quotas:
    """The quotas of all keys. For one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._quotas: dict[bytes, Quota] = {}
        self._free = Quota(None, clock)

    def of(self, key: Key | None) -> Quota:
        """That of ``key``; without one, or without limits, nothing is counted. A key whose limits have been
        changed begins anew."""
        if key is None or not key.limits:
            return self._free
        quota = self._quotas.get(key.digest)
        if quota is None or quota.limits != key.limits:
            quota = self._quotas[key.digest] = Quota(key, self._clock)
        return quota


def _beyond(what: str, wait: float) -> ApiError:
    return ApiError(429, f"{what}: try again later", code="rate_limit_exceeded", retry_after=wait)
