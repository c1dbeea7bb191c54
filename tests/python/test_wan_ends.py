"""How connections through the WAN emulator end: outages, resets, refusals, shutting down."""

from __future__ import annotations

import os
import random
import socket
import threading
import time

import pytest

from acespec_edge.wan import wan_thread
from tests.clock import steady, wait_until
from tests.python.fakes import no_thread_left
from tests.python.wan_kit import EARLY, TIMEOUT, echo, far_end, near_end, read_exactly

pytestmark = pytest.mark.native


def test_an_outage_holds_bytes_and_loses_none() -> None:
    data = random.Random(2).randbytes(50_000)

    def first_and_last() -> tuple[float, float]:
        started = time.monotonic()
        with (
            far_end(echo) as to,
            wan_thread(to, rtt="10ms", up="4mbit", outages="300ms:500ms") as address,
            near_end(address) as end,
        ):
            time.sleep(0.25)
            sent = time.monotonic()
            end.sendall(data)
            got = read_exactly(end, 1)
            first = time.monotonic()
            got += read_exactly(end, len(data) - 1)
            last = time.monotonic()
        assert got == data
        assert last - started >= 0.8 - EARLY
        return first - sent, last - sent

    def are_around_the_outage(took: tuple[float, float]) -> None:
        assert took[0] < 0.05
        assert 0.55 < took[1] < 0.75  # 0.1 s of sending around an outage of 0.5 s

    steady(first_and_last, are_around_the_outage)


def answers(address: str, *messages: bytes) -> list[str]:
    """What a new connection brings after each of `messages`, until an error."""
    found = []
    try:
        with near_end(address) as end:
            end.settimeout(3.0)
            for message in messages:
                if message:
                    end.sendall(message)
                found.append("echo" if end.recv(1) else "end")
    except OSError as error:
        found.append(type(error).__name__)
    return found


def test_an_outage_that_cuts_resets_connections_and_refuses_new_ones_until_it_ends() -> None:
    def around_the_start() -> list[str]:
        started = time.monotonic()
        with far_end(echo) as to, wan_thread(to, outages="300ms:500ms:cut") as address:
            found = answers(address, b"x", b"") + answers(address, b"")
            wait_until(lambda: answers(address, b"y") == ["echo"])
        assert time.monotonic() - started >= 0.8 - EARLY
        return found

    def are_cut(found: list[str]) -> None:
        assert found == ["echo", "ConnectionResetError", "ConnectionResetError"]

    steady(around_the_start, are_cut)


def test_end_of_stream_and_reset_are_passed_on() -> None:
    seen: list[bytes] = []
    reset = threading.Event()

    def drain(end: socket.socket) -> None:
        data = b""
        try:
            while part := end.recv(100):
                data += part
        except ConnectionResetError:
            reset.set()
            return
        seen.append(data)
        end.sendall(b"thanks")

    with far_end(drain) as to, wan_thread(to, rtt="10ms") as address:
        with near_end(address) as end:
            end.sendall(b"all of it")
            end.shutdown(socket.SHUT_WR)
            assert read_exactly(end, 6) == b"thanks"
            assert end.recv(1) == b""
        with near_end(address) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        assert reset.wait(TIMEOUT)
    assert seen == [b"all of it"]


def test_shutdown_under_load_leaves_no_thread_and_no_descriptor() -> None:
    def busy(end: socket.socket) -> None:
        while True:
            end.sendall(bytes(65536))

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    with no_thread_left(), far_end(busy) as to:
        with wan_thread(to, rtt="100ms", down="5mbit") as address:
            ends = [near_end(address) for _ in range(5)]
            for end in ends:
                read_exactly(end, 1000)
        for end in ends:
            end.close()
    wait_until(lambda: descriptors() <= before)


def test_a_destination_that_refuses_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with (
        wan_thread(f"127.0.0.1:{port}") as address,
        pytest.raises(ConnectionResetError),
        near_end(address) as end,
    ):
        end.recv(1)
