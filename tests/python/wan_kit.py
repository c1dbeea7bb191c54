"""Both ends of a link through the WAN emulator."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

TIMEOUT = 20.0
EARLY = 0.001
"""Seconds by which the emulator may be early each way: its alarm rings ahead by what waking took before."""


@contextlib.contextmanager
def far_end(handle: object) -> Iterator[str]:
    """A TCP server that runs `handle(socket)` on a thread for each connection; gives its HOST:PORT."""
    server = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def run(end: socket.socket) -> None:
        with end, contextlib.suppress(OSError):
            end.settimeout(TIMEOUT)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handle(end)  # type: ignore[operator]

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                end, _ = server.accept()
                threads.append(threading.Thread(target=run, args=(end,), daemon=True))
                threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        host, port = server.getsockname()
        yield f"{host}:{port}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for thread in [acceptor, *threads]:
            thread.join(TIMEOUT)


def near_end(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    end = socket.create_connection((host, int(port)), TIMEOUT)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return end


def echo(end: socket.socket) -> None:
    while data := end.recv(65536):
        end.sendall(data)


def read_exactly(end: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = end.recv(min(65536, size - len(data)))
        if not part:
            raise EOFError(f"{len(data)} of {size} bytes")
        data += part
    return bytes(data)


def near_to(value: float, rel: float) -> Callable[[float], None]:
    def check(measured: float) -> None:
        assert measured == pytest.approx(value, rel=rel)

    return check
