"""The server that both sides run: it says when it is ready, and ends in good order."""

from __future__ import annotations

import signal
import socket
import ssl
import time
from collections.abc import Callable
from types import FrameType
from typing import Final, Protocol

import uvicorn

from acespec_edge.listening import address_of

DRAIN_SECONDS: Final = 20.0
"""What running requests get to end, unless the caller says otherwise."""


class Entrance(Protocol):
    """Where to listen, and how it is encrypted."""

    def bind(self) -> socket.socket: ...

    def tls(self) -> ssl.SSLContext | None: ...


class Drainable(Protocol):
    """What is served."""

    def drain(self) -> bool:
        """Takes nothing new from now on, lets what runs end, and says whether nothing runs any more; asked
        again and again."""


class DrainingServer(uvicorn.Server):
    """Serves until told to exit. SIGTERM drains: what runs gets ``drain_seconds`` to end, what is new is
    refused by the application, which still answers; a second one, or SIGINT, ends at once. However it ends,
    run() returns, so that the exit status is the caller's. For the main thread, or for tests in any.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        served: Drainable,
        listener: Entrance,
        *,
        address: str,
        on_ready: Callable[[str], None],
        drain_seconds: float,
    ) -> None:
        """``address``: with HOST:PORT in place of ``{}``, what ``on_ready`` hears once connections are
        accepted."""
        config.load()
        config.ssl = listener.tls()
        super().__init__(config)
        self._served = served
        self._listener = listener
        self._address = address
        self._on_ready = on_ready
        self._drain_seconds = drain_seconds
        self._draining = False
        self._deadline: float | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until a signal (in the main thread), drain(), or until ``should_exit`` is set.

        ``sockets``: listening already, closed at the end; the listener binds one unless given.
        """
        super().run(sockets or [self._listener.bind()])

    def drain(self) -> None:
        """As SIGTERM: ends once nothing runs any more, or its time is over. From any thread."""
        self._draining = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Takes a signal. Only flags are set: the interrupted thread may hold any lock."""
        if sig == signal.SIGTERM and not self._draining:
            self._draining = True
        elif self.should_exit:
            self.force_exit = True
        else:
            self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to accept, then reports the address."""
        await super().startup(sockets)
        if self.started:
            self._on_ready(self._address.format(address_of(self.servers[0].sockets[0])))

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second; says whether to exit."""
        if self._draining:
            now = time.monotonic()
            if self._deadline is None:
                self._deadline = now + self._drain_seconds
            if self._served.drain() or now >= self._deadline:
                self.should_exit = True
        return await super().on_tick(counter)
