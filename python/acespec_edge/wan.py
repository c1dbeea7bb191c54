"""A wide-area network between two ends on this machine, no root needed: a proxy that delays and paces.

All connections share one bottleneck each way (rate, queue) as they share an uplink; `up` is from the
listening side to the destination. Nothing is lost or reordered: an outage holds bytes back, as TCP makes it
look. Opening a connection itself costs no round trip.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from acespec_edge.alarm import Alarm
from acespec_edge.errors import LinkError, UsageError
from acespec_edge.units import bits_per_second, seconds
from acespec_edge.wan_flow import (
    Address,
    Direction,
    Flow,
    abort,
    connected,
    format_endpoint,
    listening,
    parse_endpoint,
    resolve,
    tune,
)
from acespec_edge.wan_link import LinkModel, Outage, parse_outages

QUEUE_BYTES = 256 * 1024
PACKET_OVERHEAD = 40
_THREAD_TIMEOUT = 10.0


@dataclass(frozen=True)
class Traffic:
    """Payload bytes delivered each way, and connections, since the emulator started."""

    up_bytes: int
    down_bytes: int
    connections: int
    failed_connects: int


class WanEmulator:
    """Proxies TCP connections from `listen` to `to` (HOST:PORT; port 0 takes a free one) through an
    emulated WAN.

    `rtt` and `jitter` are seconds or text (`100ms`): half the RTT is added each way, with a uniform
    +-`jitter` on each packet that never reorders a connection. `up` and `down` are bit/s or text (`1mbit`);
    None is unlimited. The rate carries `packet_overhead` bytes of headers for each segment of 1,448 bytes.
    `outages` count from the start of the emulator (see `parse_outages`). `seed` fixes the jitter.
    `queue_bytes` bounds what waits at the bottleneck each way; beyond it the sender is blocked. Use it
    once, as an async context manager; it belongs to that event loop.

    Raises UsageError for bad values, LinkError when `listen` cannot be bound or a name not resolved.
    """

    def __init__(
        self,
        listen: str,
        to: str,
        rtt: str | float = 0.0,
        up: str | float | None = None,
        down: str | float | None = None,
        jitter: str | float = 0.0,
        outages: str | Iterable[Outage] = (),
        seed: int = 0,
        *,
        queue_bytes: int = QUEUE_BYTES,
        packet_overhead: int = PACKET_OVERHEAD,
    ) -> None:
        self._listen = parse_endpoint(listen, "listen")
        self._to = parse_endpoint(to, "to")
        self._outages = parse_outages(outages)
        delay, spread = seconds(rtt, "rtt") / 2, seconds(jitter, "jitter")
        if queue_bytes < 1:
            raise UsageError(f"queue_bytes is {queue_bytes}: give 1 or more")
        if packet_overhead < 0:
            raise UsageError(f"packet_overhead is {packet_overhead}: give 0 or more bytes")
        self._links = [
            LinkModel(
                rate,
                delay,
                spread,
                self._outages,
                queue_bytes=queue_bytes,
                packet_overhead=packet_overhead,
                seed=2 * seed + side,
            )
            for side, rate in enumerate([bits_per_second(up, "up"), bits_per_second(down, "down")])
        ]
        self._server: socket.socket | None = None
        self._ways: list[Direction] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._live: set[asyncio.Task[None]] = set()
        self._connections = 0
        self._failed_connects = 0

    @property
    def address(self) -> str:
        """HOST:PORT that accepts connections."""
        if self._server is None:
            raise UsageError("the WAN emulator is not running: enter it with `async with`")
        return format_endpoint(*self._server.getsockname()[:2])

    @property
    def traffic(self) -> Traffic:
        """What has been carried so far."""
        up, down = (way.delivered for way in self._ways) if self._ways else (0, 0)
        return Traffic(up, down, self._connections, self._failed_connects)

    async def __aenter__(self) -> WanEmulator:
        addresses = resolve(self._to, "to")
        self._server = listening(self._listen)
        alarm = self._alarm = Alarm()
        started = time.monotonic()
        self._ways = [Direction(link, alarm, started) for link in self._links]
        self._spawn(self._accept(self._server, addresses))
        for outage in self._outages:
            if outage.cut:
                self._spawn(self._cut(outage))
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        self._alarm.close()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _refusing(self) -> bool:
        now = self._ways[0].now()
        return any(outage.cut and outage.start <= now < outage.end for outage in self._outages)

    async def _cut(self, outage: Outage) -> None:
        await self._ways[0].until(outage.start)
        for task in self._live:
            task.cancel()

    async def _accept(self, server: socket.socket, addresses: list[Address]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(server)
            except OSError:  # out of descriptors, or the client has left: neither ends the emulator
                await asyncio.sleep(0.05)
                continue
            if self._refusing():
                abort(client)
                continue
            self._connections += 1
            task = self._spawn(self._connection(client, addresses))
            self._live.add(task)
            task.add_done_callback(self._live.discard)

    async def _connection(self, client: socket.socket, addresses: list[Address]) -> None:
        """Owns both sockets: closes them gracefully when both ways have ended, with a reset otherwise."""
        tune(client)
        try:
            server = await connected(addresses)
        except BaseException as error:
            abort(client)
            if not isinstance(error, OSError):
                raise
            self._failed_connects += 1
            return
        up, down = self._ways
        flows = [Flow(client, server, up), Flow(server, client, down)]
        runs = [asyncio.create_task(flow.run()) for flow in flows]
        close: Callable[[socket.socket], None] = abort
        try:
            await asyncio.gather(*runs)
            close = socket.socket.close
        except OSError:
            return  # one end broke the connection: the other sees that too
        finally:
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)
            close(client)
            close(server)


@contextlib.contextmanager
def wan_thread(to: str, listen: str = "127.0.0.1:0", **options: Any) -> Iterator[str]:
    """Runs a WanEmulator (same options) on a thread of its own; gives the HOST:PORT to connect to.

    Raises what WanEmulator raises, LinkError when the thread does not start or stop within 10 s.
    """
    emulator = WanEmulator(listen, to, **options)
    running: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        finish = asyncio.Event()
        async with emulator:
            running.set_result((emulator.address, asyncio.get_running_loop(), finish))
            await finish.wait()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            if running.done():
                raise
            running.set_exception(error)

    thread = threading.Thread(target=run, name="acespec-wan", daemon=True)
    thread.start()
    address, loop, finish = running.result(_THREAD_TIMEOUT)
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(finish.set)
        thread.join(_THREAD_TIMEOUT)
        if thread.is_alive():
            raise LinkError(f"the WAN emulator on {address} did not stop within {_THREAD_TIMEOUT:g} s")
