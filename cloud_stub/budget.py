"""How much KV the running requests may hold together."""

from __future__ import annotations

import threading


class KvBudget:
    """``capacity`` tokens of KV, reserved request by request. Thread-safe."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._reserved = 0
        self._lock = threading.Lock()

    @property
    def reserved(self) -> int:
        """Tokens that running requests have taken."""
        return self._reserved

    def take(self, tokens: int) -> bool:
        """Reserves ``tokens``; False, and nothing is reserved, when fewer are free."""
        with self._lock:
            if self._reserved + tokens > self.capacity:
                return False
            self._reserved += tokens
            return True

    def give(self, tokens: int) -> None:
        """Gives back what was taken."""
        with self._lock:
            self._reserved -= tokens
