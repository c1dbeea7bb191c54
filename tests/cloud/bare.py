"""A socket that says what no WebSocket library would."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any

from acespec_edge import _core
from cloud_stub.service import Service
from tests.cloud.live import TIMEOUT

UPGRADE = (
    b"GET /v1/spec HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
BINARY, CONTINUATION, CLOSE, PING, PONG = 0x2, 0x0, 0x8, 0x9, 0xA


def frame(payload: bytes, opcode: int = BINARY, *, final: bool = True, claimed: int | None = None) -> bytes:
    """A masked WebSocket frame; ``claimed``: the length in its head, that of ``payload`` unless given."""
    length = len(payload) if claimed is None else claimed
    head = bytes([opcode | (0x80 if final else 0)])
    if length < 1 << 16:
        head += b"\xfe" + struct.pack("!H", length)
    else:
        head += b"\xff" + struct.pack("!Q", length)
    return head + bytes(4) + payload


class Bare:
    """A connection, past its upgrade unless told otherwise. ``close_code``: of the server's close frame, once
    it has come."""

    def __init__(self, address: str, *, upgrade: bool = True) -> None:
        host, port = address.split("/")[2].split(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT)
        self.close_code: int | None = None
        self._received = b""
        if upgrade:
            self.send(UPGRADE)
            while b"\r\n\r\n" not in self._received:
                self._received += self.socket.recv(4096)
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101"), head

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """What the server does not take because it has hung up already is dropped."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def greet(self, service: Service) -> Bare:
        target = service.target
        hello = _core.Hello(tokenizer=target.fingerprint, vocabulary=16, chunks=list(target.chunks))
        self.send(frame(_core.encode(hello)))
        assert isinstance(self.hear(), _core.Welcome)
        return self

    def hear(self) -> Any:
        """The next message; None once the server has hung up."""
        while True:
            head = self._take(2)
            if len(head) < 2:
                return None
            opcode, length = head[0] & 0xF, head[1]
            if length == 126:
                length = struct.unpack("!H", self._take(2))[0]
            payload = self._take(length)
            if opcode == CLOSE:
                self.close_code = struct.unpack("!H", payload[:2])[0] if payload else None
                return None
            if opcode == BINARY:
                return _core.decode(payload)

    def rest(self) -> list[Any]:
        """All messages until the server hangs up."""
        return list(iter(self.hear, None))

    def keep(self, data: bytes) -> None:
        """For hear(): what has been read off the socket by others."""
        self._received += data

    def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                data = b""
            if not data:
                break
            self._received += data
        taken, self._received = self._received[:size], self._received[size:]
        return taken
