"""A session over a link: the waits, and nothing else."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from acespec_edge import _core
from acespec_edge.errors import AcespecError, LinkError, PeerError, UsageError
from acespec_edge.request import Request
from acespec_edge.session import EdgeSession
from acespec_edge.session_events import Committed, Repeated, Welcomed
from acespec_edge.session_state import State
from acespec_edge.stats import Counters
from acespec_edge.transport import Link, Received

_CANCEL_LATENCY: Final = 0.05
"""Seconds a wait may take to notice that the caller wants to stop."""

_WELCOME_TIMEOUT: Final = 10.0
_SETTLE_TIMEOUT: Final = 5.0
"""Seconds for answers that no model has to be asked for: to Hello and to Cancel."""

_PREFILL_TIMEOUT: Final = 0.25
"""Seconds a prompt token may add to the wait for the first verdict: a large target on a slow machine."""


class Channel:
    """Owns a link and its session. Every wait ends with a LinkError after a time of silence, ``timeout``
    seconds at most, but for the first verdict, which comes after the prefill.

    One thread at a time, apart from close().
    """

    welcome: _core.Welcome
    """What the cloud said of itself; there after greet()."""

    def __init__(
        self,
        link: Link,
        session: EdgeSession,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the link over. ``clock``: the seconds that the link stamps arrivals with."""
        self._link = link
        self._session = session
        self._timeout = timeout
        self._clock = clock
        self._prefill = 0.0
        self._since = clock()
        """When something was sent or heard last."""

    @property
    def idle(self) -> bool:
        """Whether a request can be opened."""
        return self._session.state is State.IDLE

    def greet(self, cancelled: threading.Event) -> bool:
        """Exchanges Hello and Welcome; False when ``cancelled`` is set first. Unless they were exchanged,
        the link is closed."""
        try:
            event = None
            # A Hello that nobody waits for any more would take its session away from whoever has it.
            if not cancelled.is_set():
                self._send(self._session.hello())
                event = self._wait(min(self._timeout, _WELCOME_TIMEOUT), cancelled)
            if isinstance(event, Welcomed):
                self.welcome = event.welcome
                return True
        except BaseException:
            self._link.close()
            raise
        self._link.close()
        return False

    def take(self) -> None:
        """This channel is the one in use, after greet(); see EdgeSession.taken."""
        self._session.taken()

    def open(self, request: Request, *, free_run: bool) -> Counters:
        """Sends a request; returns the counters of its traffic, which go on counting. Raises UsageError when
        the cloud's context cannot hold its prompt and one token."""
        limit = self.welcome.max_context
        if len(request.prompt) >= limit:
            raise UsageError(
                f"prompt has {len(request.prompt)} tokens: {self.welcome.target or 'the target'} holds "
                f"{limit} tokens, prompt and output together, so {limit - 1} are the most"
            )
        frame = self._session.open(
            request.prompt,
            request.rules,
            stop_ids=request.stop_ids,
            max_tokens=request.max_tokens,
            at=self._clock(),
            free_run=free_run,
            mode=_core.Mode[request.sampling],
            logprobs=-1 if request.logprobs is None else request.logprobs,
            grammar=request.grammar,
        )
        self._prefill = _PREFILL_TIMEOUT * len(request.prompt)
        self._send(frame)
        return self._session.counters

    @property
    def owed(self) -> bool:
        """Whether a verdict will come that was asked for."""
        return self._session.owed

    @property
    def runs_free(self) -> bool:
        """Whether the cloud goes on by itself when it has no drafts."""
        return self._session.runs_free

    @property
    def next_node(self) -> int:
        """Number of the next draft's first node."""
        return self._session.next_node

    @property
    def held(self) -> int:
        """Drafted nodes that the cloud may hold."""
        return self._session.held

    def draft(
        self,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        *,
        free_run: bool = False,
        weights: Sequence[int] = (),
        resampled: int | None = None,
        wants_hint: bool = False,
    ) -> int:
        """Sends nodes; see EdgeSession.draft. Returns the size of the message."""
        frame = self._session.draft(
            tokens,
            parents,
            at=self._clock(),
            free_run=free_run,
            weights=weights,
            resampled=resampled,
            wants_hint=wants_hint,
        )
        self._send(frame)
        return len(frame)

    def more_samples(self) -> None:
        """Asks for them; see EdgeSession.more_samples."""
        self._send(self._session.more_samples(at=self._clock()))

    def poll(self) -> Committed | None:
        """What has arrived, without waiting."""
        received = self._link.receive(0.0)
        event = None if received is None else self._take(received)
        return None if event is None else self._committed(event)

    def wait(self, cancelled: threading.Event, until: float = math.inf) -> Committed | None:
        """The next verdict; None when ``cancelled`` is set first, or ``until`` passes."""
        event = self._wait(self._timeout + self._prefill, cancelled, until)
        return None if event is None else self._committed(event)

    def settle(self, cancelled: threading.Event) -> bool:
        """Before the next request: awaits the end of a cancelled one, and notices whether the peer is still
        there. False when ``cancelled`` is set first."""
        self.abandon()
        while not self.idle:
            if self._wait(min(self._timeout, _SETTLE_TIMEOUT), cancelled) is None:
                return False
        self.poll()
        return True

    def abandon(self) -> None:
        """Tells the cloud to stop what is running; settle() awaits its answer. Raises LinkError when the
        session is over."""
        if self._session.state is State.CLOSED:
            raise LinkError("the session with the cloud is over")
        if self._session.state is State.RUNNING:
            self._send(self._session.cancel())

    def close(self, reason: str) -> None:
        """Says good-bye when the link still takes it, and ends the link; never raises."""
        with contextlib.suppress(AcespecError):
            self._send(self._session.close(reason))
        self._link.close()

    def _send(self, frame: bytes) -> None:
        self._link.send(frame)
        self._since = self._clock()

    def _wait(
        self, seconds: float, cancelled: threading.Event, until: float = math.inf
    ) -> Committed | Welcomed | None:
        while not cancelled.is_set():
            now, deadline = self._clock(), self._since + seconds
            received = self._link.receive(max(0.0, min(deadline - now, until - now, _CANCEL_LATENCY)))
            if received is not None:
                event = self._take(received)
                if event is not None:
                    return event
                continue
            now = self._clock()
            if now >= until:
                return None
            if now >= deadline:
                raise LinkError(f"no answer from the cloud for {seconds:g} s")
        return None

    def _take(self, received: Received) -> Committed | Welcomed | None:
        """None for what only the session had to know of."""
        self._since = received.at
        event = self._session.receive(received.data, received.at)
        if not isinstance(event, Repeated):
            return event
        for frame in event.frames:
            self._send(frame)
        return None

    def _committed(self, event: Committed | Welcomed) -> Committed:
        if isinstance(event, Committed):
            self._prefill = 0.0
            return event
        raise PeerError("the cloud welcomed this session twice")
