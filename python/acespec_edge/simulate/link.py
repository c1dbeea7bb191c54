"""An emulated wide-area link in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from acespec_edge.errors import LinkError
from acespec_edge.simulate.clock import Task, World
from acespec_edge.transport import Received
from acespec_edge.wan import PACKET_OVERHEAD, QUEUE_BYTES
from acespec_edge.wan_link import LinkModel

_SHORT: Final = 125
"""Bytes of the longest message whose length fits the first two bytes of a WebSocket's header (RFC 6455)."""
_HEADER: Final = 2
_LONGER: Final = 2
_MASK: Final = 4


@dataclass(frozen=True, slots=True)
class Network:
    """``rtt`` and ``jitter`` in seconds, ``up`` and ``down`` in bit/s; None is unlimited."""

    rtt: float
    up: float | None = None
    down: float | None = None
    jitter: float = 0.0

    def directions(self, seed: int) -> tuple[LinkModel, LinkModel]:
        """Up and down, as `acespec wan` has them."""
        up, down = (
            LinkModel(
                rate,
                self.rtt / 2,
                self.jitter,
                (),
                queue_bytes=QUEUE_BYTES,
                packet_overhead=PACKET_OVERHEAD,
                seed=2 * seed + way,
            )
            for way, rate in enumerate((self.up, self.down))
        )
        return up, down


def framed_up(size: int) -> int:
    """Bytes on the wire of one message to the cloud, all headers included."""
    return _with_header(size, _MASK) + PACKET_OVERHEAD


def framed_down(size: int) -> int:
    """Of one from the cloud."""
    return _with_header(size, 0) + PACKET_OVERHEAD


def _with_header(size: int, mask: int) -> int:
    return size + _HEADER + mask + (_LONGER if size > _SHORT else 0)


class Peer(Protocol):
    """The cloud's end of one connection."""

    def receive(self, data: bytes) -> None:
        """Takes one message at the moment of its arrival."""

    def lost(self) -> None:
        """The connection is gone."""


class VirtualLink:
    """A Link whose messages take their time on a World: each way they queue for the rate, with the headers
    of TCP and of WebSockets, then take half the round trip. One task uses it.
    """

    def __init__(
        self, world: World, network: Network, connect: Callable[[Callable[[bytes], None]], Peer], seed: int
    ) -> None:
        """``connect`` opens the cloud's end, given what sends a message down. ``seed``: of the jitter."""
        self._world = world
        self._up, self._down = network.directions(seed)
        self._last_up = self._last_down = 0.0
        self._inbox: deque[Received] = deque()
        self._reader: Task | None = None
        self._closed = False
        self.bytes_up = 0
        self.bytes_down = 0
        self._peer = connect(self._send_down)

    def send(self, frame: bytes) -> None:
        """See Link.send."""
        if self._closed:
            raise LinkError("the simulated link is closed")
        self.bytes_up += len(frame)
        self._last_up = max(self._last_up, self._up.send(self._world(), _with_header(len(frame), _MASK)))
        self._world.at(self._last_up, lambda: self._peer.receive(frame))

    def receive(self, timeout: float) -> Received | None:
        """See Link.receive."""
        if not self._inbox and timeout > 0:
            self._reader = self._world.current
            self._world.wait(self._world() + timeout)
            self._reader = None
        if self._inbox:
            received = self._inbox.popleft()
            self.bytes_down += len(received.data)
            return received
        if self._closed:
            raise LinkError("the simulated link is closed")
        return None

    def close(self) -> None:
        """See Link.close."""
        if not self._closed:
            self._closed = True
            self._peer.lost()

    def _send_down(self, frame: bytes) -> None:
        self._last_down = max(self._last_down, self._down.send(self._world(), _with_header(len(frame), 0)))
        self._world.at(self._last_down, lambda: self._arrived(frame))

    def _arrived(self, frame: bytes) -> None:
        self._inbox.append(Received(frame, self._world()))
        if self._reader is not None:
            self._world.wake(self._reader)
