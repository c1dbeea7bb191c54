"""The WAN emulator against a clock: delay, rate, order, back-pressure."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import socket
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from acespec_edge.wan import wan_thread
from tests.clock import steady
from tests.python.wan_kit import EARLY, TIMEOUT, echo, far_end, near_end, near_to, read_exactly

pytestmark = pytest.mark.native


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
