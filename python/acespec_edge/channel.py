"""A session over a link: the waits, and nothing else."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

from acespec_edge import _core
from acespec_edge.errors import AcespecError, LinkError, PeerError, UsageError
from acespec_edge.request import Request
from acespec_edge.session import Committed, EdgeSession, State, Welcomed
from acespec_edge.stats import Counters
from acespec_edge.transport import Link

_CANCEL_LATENCY = 0.05
"""Seconds a wait may take to notice that the caller wants to stop."""


class Channel:
    """Owns a link and its session. Every wait ends after ``timeout`` seconds of silence with a LinkError.

    One thread at a time, apart from close().
    """

    def __init__(self, link: Link, session: EdgeSession, timeout: float) -> None:
        """Takes the link over and exchanges Hello and Welcome; closes the link when that fails."""
        self._link = link
        self.session = session
        self._timeout = timeout
        try:
            link.send(session.hello())
            event = self._wait()
            if not isinstance(event, Welcomed):
                raise PeerError("the cloud did not welcome this session")
            self.welcome: _core.Welcome = event.welcome
        except BaseException:
            link.close()
            raise

    def open(self, request: Request, *, free_run: bool) -> Counters:
        """Sends a request; returns the counters of its traffic, which go on counting. Raises UsageError when
        the cloud's context cannot hold its prompt and one token."""
        limit = self.welcome.max_context
        if len(request.prompt) >= limit:
            raise UsageError(
                f"prompt has {len(request.prompt)} tokens: {self.welcome.target or 'the target'} holds "
                f"{limit} tokens, prompt and output together, so {limit - 1} are the most"
            )
        frame = self.session.open(
            request.prompt,
            request.rules,
            stop_ids=request.stop_ids,
            max_tokens=request.max_tokens,
            at=time.monotonic(),
            free_run=free_run,
        )
        self._link.send(frame)
        return self.session.counters

    def draft(self, tokens: Sequence[int], *, free_run: bool = False) -> None:
        """Sends a chain; see EdgeSession.draft."""
        self._link.send(self.session.draft(tokens, at=time.monotonic(), free_run=free_run))

    def poll(self) -> Committed | None:
        """What has arrived, without waiting."""
        received = self._link.receive(0.0)
        return None if received is None else self._committed(self.session.receive(received.data, received.at))

    def wait(self, cancelled: threading.Event) -> Committed | None:
        """The next verdict; None when ``cancelled`` is set first."""
        event = self._wait(cancelled)
        return None if event is None else self._committed(event)

    def settle(self) -> None:
        """Ends what is left of a request, and notices whether the peer is still there, before the next
        one."""
        self.abandon()
        while self.session.state is State.CANCELLING:
            self._wait()
        self.poll()

    def abandon(self) -> None:
        """Tells the cloud to stop what is running; settle() awaits its answer."""
        if self.session.state is State.RUNNING:
            self._link.send(self.session.cancel())

    def close(self, reason: str) -> None:
        """Says good-bye when the link still takes it, and ends the link; never raises."""
        with contextlib.suppress(AcespecError):
            self._link.send(self.session.close(reason))
        self._link.close()

    def _wait(self, cancelled: threading.Event | None = None) -> Committed | Welcomed | None:
        deadline = time.monotonic() + self._timeout
        while True:
            if cancelled is not None and cancelled.is_set():
                return None
            left = deadline - time.monotonic()
            if left <= 0:
                raise LinkError(f"no answer from the cloud for {self._timeout:g} s")
            received = self._link.receive(left if cancelled is None else min(left, _CANCEL_LATENCY))
            if received is not None:
                return self.session.receive(received.data, received.at)

    @staticmethod
    def _committed(event: Committed | Welcomed) -> Committed:
        if isinstance(event, Committed):
            return event
        raise PeerError("the cloud welcomed this session twice")
