"""A cloud inside the caller's process, behind the same link as a far one."""

from __future__ import annotations

import queue
import time
from typing import Any

from acespec_edge.errors import LinkError
from acespec_edge.transport import Received
from cloud_stub.continuation import SelfDrafting
from cloud_stub.scheduler import Pacing
from cloud_stub.service import Service, ServiceOptions
from cloud_stub.verifiers.base import Verifier


class LocalLink:
    """One session of a service in this process, as a ``Link``; the service ends with the link."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._inbox: queue.SimpleQueue[Received | str] = queue.SimpleQueue()
        self._ended: str | None = None
        self.bytes_up = 0
        self.bytes_down = 0
        self._connection = service.connect(self._deliver, self._inbox.put)

    def send(self, frame: bytes) -> None:
        """Hands one message to the service."""
        if self._ended is not None:
            raise LinkError(f"the local cloud is closed: {self._ended}")
        self.bytes_up += len(frame)
        self._connection.receive(bytes(frame))

    def receive(self, timeout: float) -> Received | None:
        """The next message within ``timeout`` seconds, else None."""
        if self._ended is None:
            try:
                item = self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
            except queue.Empty:
                return None
            if isinstance(item, Received):
                self.bytes_down += len(item.data)
                return item
            self._ended = item
        raise LinkError(f"the local cloud is closed: {self._ended}")

    def close(self) -> None:
        """Ends the session and the service. Idempotent."""
        self._connection.lost()
        self._inbox.put("closed by this side")
        self._service.close()

    def _deliver(self, frame: bytes) -> None:
        self._inbox.put(Received(frame, time.monotonic()))


def connect(
    model: str | Verifier,
    *,
    emulate_verify_ms: tuple[float, float] = (0.0, 0.0),
    self_drafting: SelfDrafting | None = None,
    **options: Any,
) -> LocalLink:
    """Loads ``model`` (as ``load_verifier`` does, with its ``options``; or a verifier as it is) and
    connects to it.

    ``emulate_verify_ms``: shortest time of a forward, base and per node, in milliseconds.
    ``self_drafting``: what the cloud drafts when it goes on by itself.
    """
    if isinstance(model, str):
        from cloud_stub.verifiers.loading import load_verifier

        verifier: Verifier = load_verifier(model, **options)
    else:
        verifier = model
    return LocalLink(Service(verifier, ServiceOptions(pacing=Pacing(*emulate_verify_ms)), self_drafting))
