"""The WAN emulator against a clock: delay, rate, order, outages, back-pressure, and nothing left behind."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from acespec_edge.errors import LinkError, UsageError
from acespec_edge.wan import wan_thread
from tests.clock import steady, wait_until
from tests.python.fakes import no_thread_left

TIMEOUT = 20.0
EARLY = 0.001
"""Seconds by which the emulator may be early each way: its alarm rings ahead by what waking took before."""
ACESPEC = [sys.executable, "-c", "from acespec_edge.cli import main; main()"]


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


def measured_rtt(rtt: float, length: float) -> float:
    """Median round trip in seconds of one small message after another for `length` seconds."""
    trips = []
    with far_end(echo) as to, wan_thread(to, rtt=rtt) as address, near_end(address) as end:
        until = time.monotonic() + length
        while time.monotonic() < until:
            sent = time.monotonic()
            end.sendall(b"ping")
            read_exactly(end, 4)
            trips.append(time.monotonic() - sent)
    assert min(trips) >= rtt - 2 * EARLY
    return statistics.median(trips)


def measured_rate(rate: float, length: float, *, upwards: bool) -> float:
    """Payload bit/s that arrive over `length` seconds, counted between arrivals, header bytes not charged.

    Counted from the start, they never arrive faster than at `rate`.
    """
    chunk = os.urandom(16384)
    arrivals: list[tuple[float, int]] = []
    done = threading.Event()

    def sink(end: socket.socket) -> None:
        while not done.is_set() and (data := end.recv(65536)):
            arrivals.append((time.monotonic(), len(data)))
            if arrivals[-1][0] - arrivals[0][0] >= length:
                done.set()

    def source(end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not done.is_set():
                end.sendall(chunk)

    speed = {"up": rate} if upwards else {"down": rate}
    far, near = (sink, source) if upwards else (source, sink)
    started = time.monotonic()
    with (
        far_end(far) as to,
        wan_thread(to, rtt=0.02, packet_overhead=0, **speed) as address,
        near_end(address) as end,
    ):
        near(end)
    total = 0
    for at, size in arrivals:
        total += size
        assert total * 8 / rate <= at - started
    elapsed = arrivals[-1][0] - arrivals[0][0]
    return sum(size for _, size in arrivals[1:]) * 8 / elapsed


def near_to(value: float, rel: float) -> Callable[[float], None]:
    def check(measured: float) -> None:
        assert measured == pytest.approx(value, rel=rel)

    return check


def assert_rate(rate: float, length: float, *, upwards: bool) -> None:
    steady(lambda: measured_rate(rate, length, upwards=upwards), near_to(rate, 0.05))


def assert_link_is_true(length: float) -> None:
    """Delays and rates of the whole range within 5 %, measured side by side."""
    delays = [0.02, 0.1, 0.4]
    rates = [(50e3, True), (1e6, False), (10e6, True)]
    with ThreadPoolExecutor(len(delays) + len(rates)) as pool:
        running = [
            pool.submit(steady, partial(measured_rtt, rtt, length), near_to(rtt, 0.05)) for rtt in delays
        ]
        running += [pool.submit(assert_rate, rate, length, upwards=upwards) for rate, upwards in rates]
        for measuring in running:
            measuring.result()


def test_delay_and_rate_are_within_five_percent() -> None:
    assert_link_is_true(2.5)


@pytest.mark.slow
def test_delay_and_rate_stay_within_five_percent_over_20_seconds() -> None:
    assert_link_is_true(20.0)
    for upwards in (True, False):
        assert_rate(100e6, 20.0, upwards=upwards)


def test_header_bytes_are_carried_too() -> None:
    payload = bytes(1448 * 20)
    expected = len(payload) * 1.25 * 8 / 1e6

    def sending_takes() -> float:
        with (
            far_end(echo) as to,
            wan_thread(to, up="1mbit", packet_overhead=362) as address,
            near_end(address) as end,
        ):
            sent = time.monotonic()
            end.sendall(payload)
            read_exactly(end, len(payload))
            took = time.monotonic() - sent
        assert took >= expected - 2 * EARLY
        return took

    steady(sending_takes, near_to(expected, 0.1))


def test_bytes_arrive_in_order_whatever_the_jitter() -> None:
    data = random.Random(1).randbytes(400_000)
    with (
        far_end(echo) as to,
        wan_thread(to, rtt="20ms", up="20mbit", down="30mbit", jitter="10ms", seed=3) as address,
        near_end(address) as end,
    ):
        sender = threading.Thread(target=end.sendall, args=(data,))
        sender.start()
        assert hashlib.sha256(read_exactly(end, len(data))).digest() == hashlib.sha256(data).digest()
        sender.join()


def test_jitter_spreads_the_delay_around_the_mean() -> None:
    shortest: list[float] = []  # the seed repeats the delay of each trip

    def sixty_trips() -> list[float]:
        trips = []
        with (
            far_end(echo) as to,
            wan_thread(to, rtt="20ms", jitter="8ms", seed=5) as address,
            near_end(address) as end,
        ):
            for _ in range(60):
                sent = time.monotonic()
                end.sendall(b"x")
                read_exactly(end, 1)
                trips.append(time.monotonic() - sent)
        assert min(trips) >= 0.004 - 2 * EARLY
        assert max(trips) > 0.024
        shortest[:] = map(min, shortest or trips, trips)
        return shortest

    def are_spread(trips: list[float]) -> None:
        assert min(trips) < 0.016
        assert statistics.mean(trips) == pytest.approx(0.02, rel=0.15)

    steady(sixty_trips, are_spread)


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


def test_a_slow_link_blocks_its_sender() -> None:
    with (
        far_end(echo) as to,
        wan_thread(to, up="50kbit", queue_bytes=8192) as address,
        near_end(address) as end,
    ):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        end.settimeout(0.3)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 4 << 20:
                sent += end.send(bytes(4096))
    assert sent < 400_000


def test_a_peer_that_does_not_read_blocks_the_sender_on_a_fast_link() -> None:
    held = threading.Event()
    with (
        far_end(lambda end: held.wait(TIMEOUT)) as to,
        wan_thread(to, up="1gbit", queue_bytes=65536) as address,
        near_end(address) as end,
    ):
        end.settimeout(0.5)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 64 << 20:
                sent += end.send(bytes(65536))
        held.set()
    assert sent < 32 << 20


def test_many_connections_share_the_rate() -> None:
    count, size = 40, 2500
    expected = count * size * 8 / 2e6 + 0.02

    def all_take() -> float:
        with (
            far_end(echo) as to,
            wan_thread(to, rtt="20ms", up="2mbit", packet_overhead=0) as address,
            contextlib.ExitStack() as stack,
        ):
            ends = [stack.enter_context(near_end(address)) for _ in range(count)]
            payloads = [random.Random(n).randbytes(size) for n in range(count)]
            started = time.monotonic()
            for end, payload in zip(ends, payloads, strict=True):
                end.sendall(payload)
            assert [read_exactly(end, size) for end in ends] == payloads
            took = time.monotonic() - started
        assert took >= expected - 2 * EARLY
        return took

    steady(all_take, near_to(expected, 0.1))


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rtt": "100"}, "rtt is '100': give a duration such as 100ms"),
        ({"rtt": -1.0}, "rtt is -1.0"),
        ({"up": "fast"}, "up is 'fast': give a rate such as 50kbit"),
        ({"down": "0mbit"}, "down is '0mbit': a rate must be above zero"),
        ({"jitter": "5 min"}, "jitter is '5 min'"),
        ({"outages": "5s"}, "outage is '5s': give START:DURATION"),
        ({"outages": "5s:0s"}, "duration must be above zero"),
        ({"outages": "1s:2s,2s:1s"}, "begins before"),
        ({"queue_bytes": 0}, "queue_bytes is 0"),
        ({"to": "nowhere"}, "to is 'nowhere': give HOST:PORT"),
        ({"listen": "127.0.0.1:99999"}, "listen is '127.0.0.1:99999'"),
    ],
)
def test_bad_values_are_named(options: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"to": "127.0.0.1:1", **options}
    with pytest.raises(UsageError, match=re.escape(message)), wan_thread(**arguments):  # type: ignore[arg-type]
        pass


def test_an_address_in_use_is_a_link_error() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(LinkError, match=r"cannot listen on 127\.0\.0\.1"),
        wan_thread("127.0.0.1:1", listen=f"127.0.0.1:{taken.getsockname()[1]}"),
    ):
        pass


def test_the_command_reports_its_address_and_what_it_carried() -> None:
    command = [*ACESPEC, "wan", "--json", "--listen", "127.0.0.1:0", "--rtt", "20ms", "--down", "1mbit"]
    environment = _child_environment()
    with (
        far_end(echo) as to,
        subprocess.Popen(
            [*command, "--to", to], stdout=subprocess.PIPE, text=True, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["listen"]
        with near_end(address) as end:
            end.sendall(b"ping")
            assert read_exactly(end, 4) == b"ping"
        process.send_signal(signal.SIGINT)
        carried = json.loads(process.communicate(timeout=TIMEOUT)[0])
    assert process.returncode == 0
    assert (carried["up_bytes"], carried["down_bytes"], carried["connections"]) == (4, 4, 1)


def test_the_command_names_a_bad_option() -> None:
    command = [*ACESPEC, "wan", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--rtt", "fast"]
    done = subprocess.run(command, capture_output=True, text=True, env=_child_environment(), timeout=TIMEOUT)
    assert done.returncode == 2
    assert "rtt is 'fast': give a duration such as 100ms" in done.stderr


def _child_environment() -> dict[str, str]:
    """This process's import path for a child, whether the package is installed or not."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
