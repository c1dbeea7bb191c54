"""One request over as many connections as it takes: where one broke off, the next goes on."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from acespec_edge.channel import Channel
from acespec_edge.errors import LinkError, UsageError
from acespec_edge.modes import Commit, Run
from acespec_edge.reconnect import Reconnection
from acespec_edge.request import resumed
from acespec_edge.uplink import Uplink

_LOOK: Final = 0.05
"""Seconds a wait may take to notice that the caller wants to stop."""


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """What became of a connection that a request needs. ``seconds``: for how long it has been missing."""

    kind: Literal["lost", "offline", "back"]
    seconds: float
    reason: str = ""

    def __str__(self) -> str:
        if self.kind == "lost":
            return f"{self.reason}; waiting for another connection"
        if self.kind == "offline":
            return f"no cloud for {self.seconds:.1f} s: this device goes on alone"
        return f"connected again after {self.seconds:.1f} s: the target goes on"


@dataclass(frozen=True, slots=True)
class Endurance:
    """What happens without a cloud, in seconds. ``reconnect_for``: how long a request waits for one before
    it ends with a LinkError. ``offline_after``: when the drafter goes on alone; None: never. Raises
    UsageError for less than 0, or no end."""

    reconnect_for: float
    offline_after: float | None

    def __post_init__(self) -> None:
        if not 0 <= self.reconnect_for < math.inf:
            raise UsageError(f"reconnect_for is {self.reconnect_for}: it must be 0 or more seconds")
        if self.offline_after is not None and not 0 <= self.offline_after < math.inf:
            raise UsageError(f"offline_after is {self.offline_after}: it must be 0 or more seconds, or None")


class Resumption:
    """Runs a request to its end across lost connections.

    What is committed stays: after a loss the request is opened again with all of it behind the prompt, as
    output carried over (``carried`` in Open), so penalties, grammar, noise by position and limits go on where
    they were, and by coupled sampling the tokens are those of an unbroken run. A verdict that was lost on the
    way is made again. For the thread that has the turn.
    """

    def __init__(
        self,
        run: Run,
        uplink: Uplink,
        decode: Callable[[Run, Channel], Iterator[Commit]],
        alone: Callable[[Run], Iterator[Commit]] | None,
        endurance: Endurance,
        tell: Callable[[LinkEvent], None],
    ) -> None:
        """``decode``: goes on with the target. ``alone``: without it, None where that is no choice; a
        "context" of it means that the drafter holds no more. ``tell`` hears what becomes of the link."""
        self._run = run
        self._uplink = uplink
        self._decode = decode
        self._alone = alone if endurance.offline_after is not None else None
        self._endurance = endurance
        self._tell = tell
        self._committed: list[int] = []
        self._told = False
        self._missing: float | None = None
        """Since when nothing has come of a connection; a new one that brings nothing does not end that."""
        self._delay = 0.0
        self._busy: LinkError | None = None
        """By which the cloud asked for time, which may be more than there is patience."""

    def commits(self) -> Iterator[Commit]:
        """What is committed, as it is. Raises LinkError when no connection comes back in time."""
        while (channel := (yield from self._connected())) is not None:
            rest = self._rest()
            if self._committed and len(rest.request.prompt) >= channel.welcome.max_context:
                yield Commit([], "context")
                return
            try:
                for commit in self._decode(rest, channel):
                    if commit.tokens:
                        self._missing = None
                        self._uplink.backoff.reset()
                    self._committed += commit.tokens
                    yield commit
                return
            except LinkError as error:
                self._lost(error)

    def _lost(self, error: LinkError) -> None:
        """Takes the loss of a connection; raises ``error`` when it ends the request."""
        # A cloud that is busy at the start of a request says so best itself.
        at_start = error.retry_after is not None and not self._committed
        if at_start or (self._alone is None and self._waited() >= self._endurance.reconnect_for):
            raise error
        # A busy cloud may have ended no more than the request: the connection is there when it has time.
        self._uplink.drop_unless_idle(f"giving up: {error}")
        self._run.meter.outages += 1
        if self._missing is None:
            self._missing = self._run.clock()
        self._busy = None if error.retry_after is None else error
        self._delay = self._uplink.backoff.next(error.retry_after or 0.0)
        self._say_lost(error)

    def _say_lost(self, error: LinkError) -> None:
        self._told = True
        self._tell(LinkEvent("lost", self._waited(), str(error)))

    def _connected(self) -> Generator[Commit, None, Channel | None]:
        """The channel to go on with; meanwhile, perhaps, what the drafter writes alone. None when the request
        has ended."""
        run, uplink = self._run, self._uplink
        if self._missing is None and (channel := uplink.settled(run.cancelled)) is not None:
            return channel
        began = run.clock()
        if self._missing is None:
            self._missing = began
        with contextlib.closing(Reconnection(uplink.again, uplink.backoff, self._delay)) as attempts:
            while not run.cancelled.is_set():
                if (channel := attempts.wait(_LOOK)) is not None:
                    uplink.adopt(channel)
                    self._back(run.clock() - began)
                    return channel
                if attempts.failure is not None and not self._told:
                    self._say_lost(attempts.failure)
                if self._alone is not None and self._endurance.offline_after is not None:
                    if self._waited() >= self._endurance.offline_after and (
                        yield from self._offline(self._alone, attempts)
                    ):
                        return None
                elif self._waited() >= self._endurance.reconnect_for and (
                    failure := attempts.failure or self._busy
                ):
                    raise self._given_up(failure)
        return None

    def _back(self, seconds: float) -> None:
        if self._told:
            self._told = False
            self._run.meter.reconnects += 1
            self._run.meter.outage += seconds
            self._tell(LinkEvent("back", seconds))

    def _offline(
        self, alone: Callable[[Run], Iterator[Commit]], attempts: Reconnection
    ) -> Generator[Commit, None, bool]:
        """What the drafter writes until there is a connection; whether that ended the request."""
        self._told = True
        self._tell(LinkEvent("offline", self._waited()))
        for commit in alone(self._rest()):
            full = commit.finish == "context"
            if commit.tokens:
                self._committed += commit.tokens
                yield replace(commit, finish=None) if full else commit
            if full:
                break
            if commit.finish is not None:
                return True
            if attempts.done:
                return False
        # The drafter holds no more: what is left is to wait.
        self._alone = None
        self._missing = self._run.clock()
        return False

    def _rest(self) -> Run:
        return replace(self._run, request=resumed(self._run.request, self._committed))

    def _waited(self) -> float:
        return 0.0 if self._missing is None else self._run.clock() - self._missing

    def _given_up(self, failure: LinkError) -> LinkError:
        if self._endurance.reconnect_for <= 0:
            return failure
        return LinkError(f"{failure} (tried for {self._waited():.0f} s)", retry_after=failure.retry_after)
