"""What the service counts and times."""

from __future__ import annotations

import threading

from prometheus_client import Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0, 2.5, 5.0, 10.0)


class Counters:
    """Monotonic sums and distributions since the start. Thread-safe."""

    def __init__(self) -> None:
        self.queue = Histogram(
            "acespec_cloud_queue_seconds",
            "Time from the arrival of work to its forward",
            buckets=_SECONDS,
            registry=None,
        )
        self.verify = Histogram(
            "acespec_cloud_verify_seconds",
            "Time of a request's forwards for one ruling, padding included",
            buckets=_SECONDS,
            registry=None,
        )
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
    "reused_tokens": "Prompt tokens whose KV was kept from an earlier request",
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
}
"""Name and meaning of every counter."""
