"""One way of one connection through an emulated link, and the sockets at its two ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field

from acespec_edge.alarm import Alarm
from acespec_edge.errors import LinkError, UsageError
from acespec_edge.wan_link import LinkModel

_SOCKET_BUFFER = 64 * 1024
_CONNECT_TIMEOUT = 10.0


@dataclass
class Direction:
    """What all connections of an emulator share one way: the bottleneck, whose turn it is, byte count."""

    link: LinkModel
    alarm: Alarm
    started: float
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    delivered: int = 0

    def now(self) -> float:
        """Seconds since the link came up."""
        return time.monotonic() - self.started

    async def until(self, moment: float) -> None:
        """Sleeps until `moment` seconds after the link came up."""
        await self.alarm.until(self.started + moment)


class Flow:
    """Moves bytes from `source` to `sink`: a reader asks the link when they arrive, a writer delivers then.

    The writer blocks with its peer, the reader with the link's queue and the flow's window: memory is
    bounded.
    """

    def __init__(self, source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        self._source = source
        self._sink = sink
        self._way = direction
        self._under_way: deque[tuple[float, bytes]] = deque()  # (arrival, bytes); empty bytes are the last
        self._held = 0
        self._last = 0.0
        self._failure: OSError | None = None
        self._sent = asyncio.Event()
        self._taken = asyncio.Event()

    async def run(self) -> None:
        """Returns once the source's end of stream is passed on; raises OSError when either end broke."""
        reader = asyncio.create_task(self._read())
        try:
            await self._write()
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        piece = self._way.link.piece_bytes
        while True:
            while self._held >= self._way.link.window_bytes:
                self._taken.clear()
                await self._taken.wait()
            try:
                data = await loop.sock_recv(self._source, max(piece, 8 * 1024))
            except OSError as error:
                self._failure = error
                data = b""
            async with self._way.turn:  # fair: connections that share the bottleneck take turns
                for start in range(0, max(1, len(data)), piece):
                    await self._admit(data[start : start + piece])
            if not data:
                return

    async def _admit(self, piece: bytes) -> None:
        now = self._way.now()
        free = self._way.link.room_at(now)
        if free > now:
            await self._way.until(free)
            now = max(free, self._way.now())
        self._last = max(self._last, self._way.link.send(now, len(piece)))
        self._under_way.append((self._last, piece))
        self._held += len(piece)
        self._sent.set()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._under_way:
                self._sent.clear()
                await self._sent.wait()
            arrival = self._under_way[0][0]
            await self._way.until(arrival)
            now = max(self._way.now(), arrival)
            due = []
            while self._under_way and self._under_way[0][0] <= now:
                due.append(self._under_way.popleft()[1])
            data = b"".join(due)
            await loop.sock_sendall(self._sink, data)
            self._way.delivered += len(data)
            self._held -= len(data)
            self._taken.set()
            if not due[-1]:
                if self._failure is not None:
                    raise self._failure
                with contextlib.suppress(OSError):  # the peer may have gone already
                    self._sink.shutdown(socket.SHUT_WR)
                return


def parse_endpoint(text: str, field_name: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[IPV6]:PORT`; UsageError naming the field otherwise."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{field_name} is {text!r}: give HOST:PORT, such as 127.0.0.1:8443")
    return host, int(port)


def format_endpoint(host: str, port: int) -> str:
    """The inverse of parse_endpoint."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


Address = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


def resolve(endpoint: tuple[str, int], field_name: str) -> list[Address]:
    """Socket addresses of an endpoint, likeliest first; LinkError when the name is unknown."""
    try:
        found = socket.getaddrinfo(*endpoint, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LinkError(f"{field_name} {format_endpoint(*endpoint)} cannot be resolved: {error}") from error
    return [(family, address) for family, _, _, _, address in found]


def listening(endpoint: tuple[str, int]) -> socket.socket:
    """A non-blocking socket that listens on the endpoint; LinkError when it cannot be bound."""
    family, address = resolve(endpoint, "listen")[0]
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tune(server)
        server.bind(address)
        server.listen(512)
    except OSError as error:
        server.close()
        raise LinkError(f"cannot listen on {format_endpoint(*endpoint)}: {error}") from error
    return server


async def connected(addresses: list[Address]) -> socket.socket:
    """A connection to the first address that answers; OSError of the last when none does."""
    loop = asyncio.get_running_loop()
    failure: OSError = OSError("no address to connect to")
    for family, address in addresses:
        client = socket.socket(family, socket.SOCK_STREAM)
        try:
            tune(client)
            await asyncio.wait_for(loop.sock_connect(client, address), _CONNECT_TIMEOUT)
            return client
        except OSError as error:
            client.close()
            failure = error
        except BaseException:
            client.close()
            raise
    raise failure


def tune(end: socket.socket) -> None:
    """Non-blocking, no Nagle delay, kernel buffers so small that the emulated queue is where bytes wait."""
    end.setblocking(False)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)


def abort(end: socket.socket) -> None:
    """Closes with a reset, so that the peer sees a broken connection rather than an end of stream."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
