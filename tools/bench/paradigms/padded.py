"""DSSD's downlink: with every rejection the whole distribution travels, a half-precision number a token.

The runtime's own cloud sends the few likeliest tokens instead (docs/protocol.md, "Residual mode"). Here the
rest really goes over the network as well, as a message of its own ahead of the verdict, and is dropped on
arrival.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from acespec_edge import _core
from acespec_edge.keyring import Key
from acespec_edge.transport import Connector, Link, Received
from cloud_stub.connection import Connection
from cloud_stub.service import Service

MARK: Final = b"\xff\xff\xff\xffdense row"
"""How such a message begins. None of the protocol does: its first four bytes are an offset within it."""

_NUMBER_BYTES: Final = 2


class PaddedService:
    """A service whose verdicts with a rejection come behind a dense row; in all else the service itself.

    Thread-safe as the service is.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._row = row_of(service.target.vocabulary)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    def connect(
        self, send: Callable[[bytes], None], hang_up: Callable[[str], None], key: Key | None = None
    ) -> Connection:
        """As of the service."""
        limits = self._service.target.limits

        def padded(data: bytes) -> None:
            message = _core.decode(data, limits)
            if isinstance(message, _core.Verdict) and message.sparse is not None:
                send(self._row)
            send(data)

        return self._service.connect(padded, hang_up, key)


class PaddedLink:
    """A Link to such a service, without what it adds. `padding`: bytes dropped since the link opened."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.padding = 0
        self.bytes_up = 0
        self.bytes_down = 0

    def send(self, frame: bytes) -> None:
        """As of the link."""
        self._link.send(frame)
        self.bytes_up = self._link.bytes_up

    def receive(self, timeout: float) -> Received | None:
        """As of the link; a row that arrives does not prolong the wait."""
        deadline = time.monotonic() + timeout
        received = self._link.receive(timeout)
        while received is not None and received.data.startswith(MARK):
            self.padding += len(received.data)
            received = self._link.receive(max(0.0, deadline - time.monotonic()))
        self.bytes_down = self._link.bytes_down
        return received

    def close(self) -> None:
        """As of the link."""
        self._link.close()


class PaddedConnector:
    """A Connector of such links. `padding`: bytes dropped on all of them."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._links: list[PaddedLink] = []

    @property
    def padding(self) -> int:
        return sum(link.padding for link in self._links)

    def __call__(self) -> Link:
        link = PaddedLink(self._connector())
        self._links.append(link)
        return link


def row_of(vocabulary: int) -> bytes:
    """A message of the size of a dense row."""
    return MARK.ljust(_NUMBER_BYTES * vocabulary, b"\0")
