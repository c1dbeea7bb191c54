"""What waits to be sent to one edge."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from starlette.websockets import WebSocket, WebSocketDisconnect

_SEND_TIMEOUT = 10.0
_MAX_WAITING = 4096
"""Messages; verdicts take about 100 bytes each, so an edge that takes none costs less than a megabyte."""
_MAX_REASON = 30
"""Characters of a close reason; the protocol allows 123 bytes."""


@dataclass(frozen=True, slots=True)
class _End:
    """Last entry of the queue."""

    reason: str


class Outbox:
    """Sends in order, from a task of its own, until told to end. ``put`` and ``end`` may be called from any
    thread and never block.

    Gives up, and ``task`` is done, when the socket is gone, takes nothing for ``_SEND_TIMEOUT`` seconds, or
    falls ``_MAX_WAITING`` messages behind. Made in the event loop.
    """

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | _End] = asyncio.Queue(_MAX_WAITING)
        self.task = asyncio.create_task(self._drain())

    def put(self, data: bytes) -> None:
        """Queues one message."""
        self._hand_over(data)

    def end(self, reason: str) -> None:
        """Closes the connection once everything put before is out."""
        self._hand_over(_End(reason))

    def _hand_over(self, item: bytes | _End) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server is gone, and so is the edge
            self._loop.call_soon_threadsafe(self._append, item)

    def _append(self, item: bytes | _End) -> None:
        try:
            self._queue.put_nowait(item)
        except asyncio.QueueFull:
            self.task.cancel()

    async def _drain(self) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            ended = False
            while not ended:
                item = await self._queue.get()
                ended = isinstance(item, _End)
                alarm = self._loop.call_later(_SEND_TIMEOUT, self.task.cancel)
                try:
                    if isinstance(item, _End):
                        await self._websocket.close(1000, item.reason[:_MAX_REASON])
                    else:
                        await self._websocket.send_bytes(item)
                finally:
                    alarm.cancel()
