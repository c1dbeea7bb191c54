"""The one connection that a runtime holds to a cloud, and how another is made."""

from __future__ import annotations

import threading
from collections.abc import Callable

from acespec_edge import _core
from acespec_edge.channel import Channel
from acespec_edge.errors import AcespecError
from acespec_edge.reconnect import Backoff
from acespec_edge.session import EdgeSession
from acespec_edge.transport import Connector


class Uplink:
    """Holds a channel from one request to the next.

    For the thread that has the turn, apart from ``welcome``; connect() may be called from any.
    """

    def __init__(self, connector: Connector, session: Callable[[], EdgeSession], timeout: float) -> None:
        """``connector`` is asked anew for every connection, ``session`` makes the state of one. ``timeout``:
        seconds of silence of a channel."""
        self._connector = connector
        self._session = session
        self._timeout = timeout
        self._channel: Channel | None = None
        self.backoff = Backoff()

    @property
    def welcome(self) -> _core.Welcome | None:
        """What the cloud said of itself on the connection that is open now; None without one."""
        channel = self._channel
        return None if channel is None else channel.welcome

    def settled(self, cancelled: threading.Event) -> Channel | None:
        """The channel of the request before, ready for the next; None when there is none that still works,
        and when ``cancelled`` is set first."""
        if (channel := self._channel) is not None:
            try:
                return channel if channel.settle(cancelled) else None
            except AcespecError as error:
                # Whatever it is, it is about the requests before.
                self.drop(f"giving up: {error}")
        return None

    def again(self, cancelled: threading.Event) -> Channel | None:
        """The channel that is held, if it still works, else a new one, as connect(). For the thread that has
        the turn, or another while that waits for it."""
        return self.settled(cancelled) or self.connect(cancelled)

    def connect(self, cancelled: threading.Event) -> Channel | None:
        """A new channel, past its handshake; adopt() it. None when ``cancelled`` is set first. Raises
        LinkError, PeerError and UsageError."""
        if cancelled.is_set():
            return None
        channel = Channel(self._connector(), self._session(), self._timeout)
        return channel if channel.greet(cancelled) else None

    def adopt(self, channel: Channel) -> None:
        """Holds ``channel`` from now on. One that was made and is not adopted leaves no trace."""
        channel.take()
        self._channel = channel

    def drop(self, reason: str) -> None:
        """Closes what is held."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close(reason)

    def drop_unless_idle(self, reason: str) -> None:
        """After a fault of its request alone a channel goes on."""
        if (channel := self._channel) is not None and not channel.idle:
            self.drop(reason)

    def abandon(self) -> None:
        """Stops what the cloud still runs. A channel that does not take that is dropped, and no error: the
        run has its result."""
        if (channel := self._channel) is not None:
            try:
                channel.abandon()
            except AcespecError as error:
                self.drop(f"giving up: {error}")
