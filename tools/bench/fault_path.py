"""A TCP path between an edge and its cloud that breaks where it is told to, within a message if need be."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, get_args

Kind = Literal["none", "reset", "end", "hole", "deaf", "mute", "pause", "outage", "restart"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
SILENT: Final = ("hole", "deaf", "mute", "outage")
"""Of which nobody is told."""

_THREAD_TIMEOUT: Final = 10.0
_RESET: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Fault:
    """What befalls a connection once ``after`` bytes have passed, both ways together.

    "reset" and "end": both ends see it break, by RST or FIN. "hole": everything vanishes from there on,
    "deaf": all that goes up, "mute": all that comes down. "pause": nothing passes for ``seconds``, nothing
    is lost. "outage" is a hole and "restart" a reset, each with ``seconds`` in which no connection is
    accepted.
    """

    kind: Kind = "none"
    after: int = 0
    seconds: float = 0.0


class FaultPath:
    """Forwards a port of this machine to another on a thread of its own. A context manager; each connection
    takes the next of the faults, later ones have none. Attributes may be read from any thread.
    """

    def __init__(self, port: int, faults: Iterable[Fault] = ()) -> None:
        self._target = port
        self._faults = iter(faults)
        self._refused_until = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        """Where to connect."""
        self.struck: tuple[float, Kind] | None = None
        """When the newest fault struck (monotonic seconds), and which."""

    def __enter__(self) -> FaultPath:
        running: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(running)), name="fault-path", daemon=True
        )
        self._thread.start()
        self.port, self._loop, self._finish = running.result(_THREAD_TIMEOUT)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._finish.set)
        self._thread.join(_THREAD_TIMEOUT)

    async def _serve(self, running: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        finish = asyncio.Event()
        running.set_result((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), finish))
        await finish.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if time.monotonic() < self._refused_until:
            _reset(writer)
            return
        # Cancelled at the end of the path, and only then.
        with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.ExitStack() as ends:
            ends.callback(writer.close)
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            ends.callback(far_writer.close)
            passage = _Passage(self, next(self._faults, Fault()), (writer, far_writer))
            await asyncio.gather(
                passage.pump(reader, far_writer, up=True), passage.pump(far_reader, writer, up=False)
            )

    def strike(self, fault: Fault) -> None:
        """Notes that ``fault`` strikes now."""
        self.struck = (time.monotonic(), fault.kind)
        if fault.kind in ("outage", "restart"):
            self._refused_until = time.monotonic() + fault.seconds


class _Passage:
    """One connection and its fault."""

    def __init__(
        self, path: FaultPath, fault: Fault, ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    ) -> None:
        self._path = path
        self._fault = fault
        self._ends = ends
        self._left = fault.after
        self._struck = False

    async def pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                await self._carry(data, sink, up)
        # Behind a hole the far end does not hear of the end either.
        if not self._swallows(up):
            with contextlib.suppress(OSError):
                sink.write_eof()

    async def _carry(self, data: bytes, sink: asyncio.StreamWriter, up: bool) -> None:
        if not self._struck and self._fault.kind != "none" and self._left < len(data):
            sink.write(data[: self._left])
            data = data[self._left :]
            self._struck = True
            self._path.strike(self._fault)
            if self._fault.kind == "pause":
                await asyncio.sleep(self._fault.seconds)
            elif self._fault.kind in ("reset", "restart", "end"):
                for end in self._ends:
                    end.close() if self._fault.kind == "end" else _reset(end)
                return
        self._left -= len(data)
        if not self._swallows(up):
            sink.write(data)
            await sink.drain()

    def _swallows(self, up: bool) -> bool:
        kind = self._fault.kind
        return self._struck and (kind in ("hole", "outage") or kind == ("deaf" if up else "mute"))


def _reset(writer: asyncio.StreamWriter) -> None:
    raw: socket.socket | None = writer.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
