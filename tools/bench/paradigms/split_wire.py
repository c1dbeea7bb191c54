"""What the two parts of a split model say to each other over TCP.

A frame is one byte for its kind, four for the length of its payload (big-endian), and the payload:

    open    up    layers on the edge, width of a hidden state, temperature, seed
    states  up    1 when a token is to follow, else 0 (more states do); half-precision rows, little-endian
    token   down  the id that follows
    fault   down  why not, as UTF-8; the connection ends

A connection serves one request, from its open frame on, and the edge ends it when it has what it wants.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from acespec_edge.errors import LinkError, PeerError
from tools.bench.paradigms.split_model import States

OPEN: Final = 1
STATES: Final = 2
TOKEN: Final = 3
FAULT: Final = 4

SILENCE: Final = 300.0
"""Seconds without a byte after which the other side counts as lost: a long prompt's states take minutes over
a narrow uplink."""

CHUNK: Final = 128
"""Tokens in a states frame, at most."""

MAX_PAYLOAD: Final = 4 << 20
_SLICE: Final = 16 << 10
_HEAD: Final = struct.Struct("!BI")
_OPEN: Final = struct.Struct("!HIdQ")
_TOKEN: Final = struct.Struct("!I")


@dataclass(frozen=True)
class Opening:
    """`layers` run on the edge, `width` numbers make a hidden state."""

    layers: int
    width: int
    temperature: float
    seed: int

    def pack(self) -> bytes:
        return _OPEN.pack(self.layers, self.width, self.temperature, self.seed)

    @classmethod
    def unpack(cls, payload: bytes) -> Opening:
        """Raises PeerError."""
        if len(payload) != _OPEN.size:
            raise PeerError(f"an open frame has {len(payload)} bytes: {_OPEN.size} would be right")
        return cls(*_OPEN.unpack(payload))


class Wire:
    """Frames over a connected socket, which it owns. One thread at a time, but for close()."""

    def __init__(self, connected: socket.socket, silence: float = SILENCE) -> None:
        self._socket = connected
        connected.settimeout(silence)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.bytes_sent = 0
        self.bytes_received = 0

    def send(self, kind: int, payload: bytes) -> int:
        """Sends a frame and returns its size. Raises LinkError."""
        frame = memoryview(_HEAD.pack(kind, len(payload)) + payload)
        try:
            for start in range(0, len(frame), _SLICE):
                self._socket.sendall(frame[start : start + _SLICE])
        except OSError as error:
            raise LinkError(f"lost the other part of the model: {error}") from error
        self.bytes_sent += len(frame)
        return len(frame)

    def receive(self) -> tuple[int, bytes] | None:
        """The next frame; None when the other side has ended the connection between two. Raises LinkError
        when it is lost or silent, PeerError when the frame is too long."""
        head = self._exactly(_HEAD.size, at_start=True)
        if not head:
            return None
        kind, size = _HEAD.unpack(head)
        if size > MAX_PAYLOAD:
            raise PeerError(f"a frame of {size} bytes arrived: {MAX_PAYLOAD} are the most")
        payload = self._exactly(size)
        self.bytes_received += len(head) + len(payload)
        return kind, payload

    def close(self) -> None:
        """Ends the connection, and a wait for it in another thread; more than once is fine."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, size: int, *, at_start: bool = False) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(min(size - len(data), 1 << 20))
            except OSError as error:
                raise LinkError(f"lost the other part of the model: {error}") from error
            if not part:
                if at_start and not data:
                    return b""
                raise LinkError("the other part of the model hung up within a frame")
            data += part
        return bytes(data)


def pack_states(states: States, last: bool) -> bytes:
    """The payload of a states frame."""
    return bytes([last]) + states.astype("<f2").tobytes()


def unpack_states(payload: bytes, width: int) -> tuple[States, bool]:
    """States [T, width], T 1 to CHUNK, and whether a token is to follow. Raises PeerError."""
    row = 2 * width
    if len(payload) < 1 + row or (len(payload) - 1) % row or len(payload) > 1 + CHUNK * row:
        raise PeerError(
            f"a states frame has {len(payload)} bytes: 1 and 1 to {CHUNK} rows of {row} are right"
        )
    states: States = np.frombuffer(payload, "<f2", offset=1).reshape(-1, width).astype(np.float16)
    if not np.isfinite(states).all():
        raise PeerError("a hidden state is not finite")
    return states, payload[0] != 0


def pack_token(token: int) -> bytes:
    """The payload of a token frame."""
    return _TOKEN.pack(token)


def unpack_token(payload: bytes, vocabulary: int) -> int:
    """Raises PeerError for what is no id of the vocabulary."""
    token = _TOKEN.unpack(payload)[0] if len(payload) == _TOKEN.size else vocabulary
    if token >= vocabulary:
        raise PeerError(f"a token frame holds {payload[:8].hex()}: an id below {vocabulary} would be right")
    return int(token)
