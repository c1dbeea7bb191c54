"""What the service counts."""

from __future__ import annotations

import threading


class Counters:
    """Monotonic sums since the start. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = dict.fromkeys(DESCRIPTIONS, 0)

    def add(self, **amounts: float) -> None:
        """Adds to the named counters; a name not in ``DESCRIPTIONS`` raises KeyError."""
        with self._lock:
            for name, amount in amounts.items():
                self._values[name] += amount

    def read(self) -> dict[str, float]:
        """All values at one moment."""
        with self._lock:
            return dict(self._values)


DESCRIPTIONS = {
    "sessions": "Sessions admitted",
    "refused_sessions": "Sessions turned away: the service was full or shutting down",
    "requests": "Requests started",
    "forwards": "Forwards that ruled on tokens",
    "committed_tokens": "Output tokens committed",
    "verified_nodes": "Drafted nodes verified",
    "accepted_nodes": "Drafted nodes accepted",
    "own_nodes": "Nodes verified that the cloud had drafted itself",
    "accepted_own_nodes": "Nodes accepted that the cloud had drafted itself",
    "hinted_nodes": "Nodes that the cloud had drafted and sent to an edge as a hint",
    "dropped_drafts": "Drafts that no longer fitted",
    "faults": "Faults sent",
    "received_bytes": "Bytes received from edges",
    "sent_bytes": "Bytes sent to edges",
    "queue_seconds": "Time from the arrival of work to its forward",
    "verify_seconds": "Time of forwards, padding included",
}
"""Name and meaning of every counter."""
