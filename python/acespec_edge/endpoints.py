"""Clouds that serve one target, and which of them to try first."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from acespec_edge.address import parse_address
from acespec_edge.errors import UsageError

MAX_ENDPOINTS: Final = 16

_FIRST_BACKOFF: Final = 1.0
_LONGEST_BACKOFF: Final = 60.0
"""Seconds; each further failure in a row doubles the one before."""

_NEWEST: Final = 0.3
"""Share of the newest measurement in a smoothed one."""

_HALF_LIFE: Final = 600.0
"""Seconds after which half of what an endpoint was slower than the fastest is forgotten: else nothing would
ever show that a slow one has become fast."""

_FILES: Final = ("token_file", "ca", "client_cert", "client_key")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A cloud's address and how to get in. ``cost``: a weight, by which its latency is multiplied before it
    is compared with that of others. The files: see transport.connect.

    Raises UsageError for a cost that is not above 0.
    """

    url: str
    cost: float = 1.0
    token_file: Path | None = None
    ca: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None

    def __post_init__(self) -> None:
        if not 0 < self.cost < math.inf:
            raise UsageError(f"cost is {self.cost:g} for {self.url}: it must be above 0, as in #cost=2")

    @classmethod
    def parse(cls, text: str, common: Endpoint) -> Endpoint:
        """``URL`` or ``URL#NAME=VALUE,...``: what the names do not say is as in ``common``. A fragment, which
        no WebSocket address may have (RFC 6455, section 3), is never sent. Raises UsageError."""
        url, _, fragment = text.partition("#")
        parse_address(url)
        own: dict[str, Any] = {}
        for part in fragment.split(",") if fragment else ():
            name, _, value = part.partition("=")
            if name in _FILES and value:
                own[name] = Path(value)
            elif name == "cost":
                own[name] = _number(value, text)
            else:
                known = ", ".join(f"{file}=FILE" for file in _FILES)
                raise UsageError(
                    f"cloud is {text!r}: behind # only cost=NUMBER, {known} are right, with commas between"
                )
        return replace(common, url=url, **own)


@dataclass(slots=True)
class _State:
    """``failures``: in a row. ``until``: end of the back-off after them. ``latency``: seconds, measured
    ``at``. ``session``: the key that its last Welcome gave."""

    failures: int = 0
    until: float = -math.inf
    latency: float | None = None
    at: float = 0.0
    session: bytes = b""


class Endpoints:
    """The health of some clouds, by index. No I/O and no clock: times are arguments, in monotonic seconds,
    and the order is a function of what was reported. Thread-safe; O(n log n).
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        """Raises UsageError for none, more than MAX_ENDPOINTS, and an address that stands twice."""
        urls = [endpoint.url for endpoint in endpoints]
        if not 0 < len(urls) <= MAX_ENDPOINTS:
            raise UsageError(f"cloud has {len(urls)} addresses: 1 to {MAX_ENDPOINTS} are right")
        for number, url in enumerate(urls):
            if url in urls[:number]:
                raise UsageError(f"cloud names {url} twice: each address must stand once")
        self.endpoints = tuple(endpoints)
        self._states = [_State() for _ in endpoints]
        self._target: str | None = None
        self._lock = threading.Lock()

    def choose(self, now: float) -> list[int]:
        """All of them, the best first. One without failures, or whose back-off is over, is the better the
        smaller ``cost * latency`` is; one that was never measured counts as being as fast as the fastest, and
        of equals the first is taken. The others follow by the end of their back-off."""
        with self._lock:
            known = [state.latency for state in self._states if state.latency is not None]
            fastest = min(known, default=1.0)

            def rank(index: int) -> tuple[bool, float, int]:
                state = self._states[index]
                if state.until > now:
                    return True, state.until, index
                latency = fastest if state.latency is None else state.latency
                faded = (latency - fastest) * 0.5 ** (max(0.0, now - state.at) / _HALF_LIFE)
                return False, self.endpoints[index].cost * (fastest + faded), index

            return sorted(range(len(self.endpoints)), key=rank)

    def others(self, index: int, now: float) -> bool:
        """Whether another than this one is without failures, or past its back-off."""
        with self._lock:
            return any(one != index and state.until <= now for one, state in enumerate(self._states))

    def begun(self, index: int, now: float) -> None:
        """An attempt begins. The one after a back-off is a trial: until its outcome is known nobody else
        makes another."""
        with self._lock:
            state = self._states[index]
            if state.failures:
                state.until = now + _backoff(state.failures)

    def failed(self, index: int, now: float, least: float = 0.0) -> None:
        """An attempt, or a connection, has failed; the cloud asked for ``least`` seconds of peace."""
        with self._lock:
            state = self._states[index]
            state.failures += 1
            state.until = now + max(least, _backoff(state.failures))

    def measured(self, index: int, seconds: float, now: float) -> None:
        """An attempt has brought a Welcome ``seconds`` after it began."""
        with self._lock:
            state = self._states[index]
            state.failures, state.until, state.at = 0, -math.inf, now
            before = seconds if state.latency is None else state.latency
            state.latency = before + _NEWEST * (seconds - before)

    def gives(self, index: int, session: bytes) -> None:
        """An endpoint's Welcome bears the key of a session."""
        with self._lock:
            self._states[index].session = session

    def gave(self, index: int, session: bytes) -> bool:
        """Whether the session of this key was this endpoint's: the key is a secret between the two."""
        with self._lock:
            return self._states[index].session == session

    def admits(self, target: str) -> str | None:
        """The first target that an endpoint serves is the one of all texts. None for it, and for another one
        its name."""
        with self._lock:
            if self._target is None:
                self._target = target
            return None if target == self._target else self._target


def _backoff(failures: int) -> float:
    return min(_LONGEST_BACKOFF, _FIRST_BACKOFF * 2.0 ** min(failures - 1, 16))


def _number(value: str, text: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"cloud is {text!r}: cost is {value!r}, a number above 0 is right") from None
