"""What the bearer of one token may take of the cloud, and has taken."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from acespec_edge.token_bucket import TokenBucket

LIMITS: Final = ("sessions", "nodes_per_second", "context")
"""Names of what a token may be limited in: sessions at a time; drafted nodes to verify, a plain step that is
asked for counting as one; tokens of prompt and output of a request."""


class Client:
    """The sessions of one token together. Thread-safe; O(1)."""

    def __init__(self, limits: Mapping[str, int], burst: int, now: float) -> None:
        """``limits``: of LIMITS; what is not there has none. ``burst``: nodes that may come at once,
        whatever the rate."""
        self.limits = dict(limits)
        self._lock = threading.Lock()
        self._sessions = 0
        rate = self.limits.get("nodes_per_second")
        self._nodes = None if rate is None else TokenBucket(rate, max(rate, burst), now)

    @property
    def sessions(self) -> int:
        """Open now."""
        return self._sessions

    def context(self, most: int) -> int:
        """Tokens of a request where the target holds ``most``."""
        return min(most, self.limits.get("context", most))

    def enter(self) -> str | None:
        """Counts a session; says why it may not be opened, if so, and counts nothing."""
        with self._lock:
            most = self.limits.get("sessions")
            if most is not None and self._sessions >= most:
                return f"{most} sessions of this token are open, which is its limit"
            self._sessions += 1
            return None

    def leave(self) -> None:
        """A session has ended."""
        with self._lock:
            self._sessions -= 1

    def spend(self, nodes: int, now: float) -> float:
        """Counts ``nodes`` to verify; seconds until they may come, if they may not now, and then nothing is
        counted."""
        if self._nodes is None:
            return 0.0
        with self._lock:
            wait = self._nodes.wait(nodes, now)
            if wait == 0.0:
                self._nodes.spend(nodes, now)
            return wait
