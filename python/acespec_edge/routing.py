"""Links to whichever of several clouds answers: the I/O around Endpoints."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from acespec_edge import _core
from acespec_edge.address import read_token
from acespec_edge.endpoints import Endpoint, Endpoints
from acespec_edge.errors import LinkError, PeerError, UsageError
from acespec_edge.faults import raise_fault
from acespec_edge.transport import Connector, Link, Received, connect, local_connector

_CONNECT_TIMEOUT: Final = 10.0
_SHORT_TIMEOUT: Final = 5.0
"""Seconds for connecting where there is another endpoint to turn to."""

_FAULT: Final = b"ACFA"
"""The file identifier of a Fault."""

_log: Final = logging.getLogger("acespec.routing")

Opener = Callable[[Endpoint], Link]
"""Opens a link to one endpoint. Raises LinkError."""


class RoutedLink:
    """A Link to the first endpoint that says Welcome. Until one does, what was sent (a Hello) is said again
    to the next when one fails, whether by its connection, by a Fault, or by serving another target than the
    endpoint before; then it is that one's link, and a loss is the caller's to deal with. So is a cloud that
    says that it is busy while another is not in its back-off: that is reported as a loss.

    Threads as of Link. receive() takes longer than its time-out while it turns to another endpoint, each of
    which has the opener's time.
    """

    def __init__(self, endpoints: Endpoints, opener: Opener, clock: Callable[[], float]) -> None:
        """Connects. ``clock``: the seconds that links stamp arrivals with. Raises LinkError, with the reason
        of each, when no endpoint serves, and UsageError when that will stay so."""
        self._endpoints = endpoints
        self._opener = opener
        self._clock = clock
        self._left = deque(endpoints.choose(clock()))
        self._sent: list[bytes] = []
        self._reasons: list[str] = []
        self._waits: list[float] = []
        self._welcomed = False
        self._failed = False
        self._repeatable = False
        self._closed = False
        self._changing = threading.Lock()
        """Guards ``_closed`` and ``_link``: what close() does not find is not kept."""
        self.bytes_up = 0
        self.bytes_down = 0
        self._turn()

    def send(self, frame: bytes) -> None:
        self.bytes_up += len(frame)
        if self._welcomed:
            with self._watched():
                self._link.send(frame)
            return
        self._sent.append(frame)
        try:
            self._link.send(self._addressed(frame))
        except LinkError as error:
            self._turn_from(str(error), error)

    def receive(self, timeout: float) -> Received | None:
        if self._welcomed:
            with self._watched():
                received = self._link.receive(timeout)
                if received is not None and received.data[4:8] == _FAULT:
                    self._look_elsewhere(received)
        else:
            received = self._greeting(timeout)
        if received is not None:
            self.bytes_down += len(received.data)
        return received

    def close(self) -> None:
        with self._changing:
            self._closed = True
            link = self._link
        if not self._welcomed:
            self._fail()
        link.close()

    def _greeting(self, timeout: float) -> Received | None:
        """The first message of an endpoint, unless that makes it turn to the next."""
        try:
            received = self._link.receive(timeout)
            if received is None:
                return None
            message = _core.decode(received.data)
        except LinkError as error:
            self._turn_from(str(error), error)
            return None
        except PeerError as error:
            self._turn_from(str(error), None)
            return None
        if isinstance(message, _core.Fault):
            self._turn_from(*_meaning(message))
            return None
        if isinstance(message, _core.Welcome):
            other = self._endpoints.admits(message.target)
            if other is not None:
                self._turn_from(
                    f"it serves {message.target!r}, but the text is of {other!r}: all must serve one target",
                    None,
                )
                return None
            seconds = received.at - self._began
            self._endpoints.measured(self._index, seconds, received.at)
            self._endpoints.gives(self._index, message.session)
            _log.info("%s serves: Welcome after %.0f ms", self._url, 1e3 * seconds)
        # Of anything else the session knows that it is out of place.
        self._welcomed = True
        self._sent.clear()
        return received

    def _look_elsewhere(self, received: Received) -> None:
        """Raises LinkError for a Fault by which the cloud is busy, while there is another to turn to."""
        message = _core.decode(received.data)
        assert isinstance(message, _core.Fault)
        reason, error = _meaning(message)
        if error is None:
            return
        self._fail(error.retry_after)
        if self._endpoints.others(self._index, self._clock()):
            raise LinkError(f"{self._url}: {reason}")
        self._failed = False  # the link lives, and its loss would be another failure

    def _turn_from(self, reason: str, error: LinkError | None) -> None:
        """Gives the endpoint up for the next one. ``error``: None when no other attempt will be better."""
        self._note(reason, error)
        self._link.close()
        self._turn()

    def _turn(self) -> None:
        while self._left and not self._closed:
            self._index = self._left.popleft()
            self._failed = False
            self._began = self._clock()
            self._endpoints.begun(self._index, self._began)
            try:
                link = self._opener(self._endpoints.endpoints[self._index])
            except LinkError as error:
                self._note(str(error), error)
                continue
            with self._changing:
                closed = self._closed
                if not closed:
                    self._link = link
            if closed:
                link.close()
                break
            try:
                for frame in self._sent:
                    link.send(self._addressed(frame))
            except LinkError as error:
                self._note(str(error), error)
                link.close()
                continue
            return
        if self._closed:
            raise LinkError("the link is closed")
        said = f"none of {len(self._reasons)} clouds serves: {'; '.join(self._reasons)}"
        if not self._repeatable:
            raise UsageError(said)
        raise LinkError(said, retry_after=min(self._waits, default=None))

    def _note(self, reason: str, error: LinkError | None) -> None:
        self._reasons.append(f"{self._url}: {reason}")
        _log.info("%s does not serve: %s", self._url, reason)
        wait = None if error is None else error.retry_after
        if wait is not None:
            self._waits.append(wait)
        self._repeatable |= error is not None
        self._fail(wait)

    def _addressed(self, frame: bytes) -> bytes:
        """``frame`` as the endpoint may hear it: a Hello shows the key of a session to nobody but the cloud
        that gave it."""
        message = _core.decode(frame)
        if not isinstance(message, _core.Hello) or self._endpoints.gave(self._index, message.resume):
            return frame
        message.resume = b""
        return _core.encode(message)

    @property
    def _url(self) -> str:
        return self._endpoints.endpoints[self._index].url

    def _fail(self, least: float | None = None) -> None:
        if not self._failed:
            self._failed = True
            self._endpoints.failed(self._index, self._clock(), least or 0.0)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except LinkError:
            self._fail()
            raise


def _meaning(fault: _core.Fault) -> tuple[str, LinkError | None]:
    try:
        raise_fault(fault)
    except LinkError as error:
        return str(error), error
    except (PeerError, UsageError) as error:
        return str(error), None


def routed(endpoints: Endpoints, opener: Opener, clock: Callable[[], float] = time.monotonic) -> Connector:
    """A connector whose every call tries the best endpoint, then the next ones."""
    return lambda: RoutedLink(endpoints, opener, clock)


def connector_to(
    cloud: str | Endpoint | Connector | Sequence[str | Endpoint] | None,
    target: str | None,
    common: Endpoint,
    timeout: float,
) -> Connector | None:
    """The connector that ``cloud`` describes; see EdgeRuntime. ``common``: how to get in where an address
    does not say. ``timeout``: seconds for connecting, within limits of its own. Files are read anew for every
    connection. Raises UsageError, also for files that cannot be used."""
    if target is not None and cloud not in ("local", ["local"]):
        raise UsageError(
            f"target is {target!r}, but only cloud='local' takes one: a remote cloud has its own"
        )
    if callable(cloud):
        return cloud
    given = [cloud] if isinstance(cloud, str | Endpoint) else list(cloud or ())
    if not given:
        return None
    if given == ["local"]:
        if target is None:
            raise UsageError("cloud is 'local', so target must name the model to serve")
        return local_connector(target)
    if "local" in given:
        raise UsageError("cloud is 'local' and other addresses: it serves alone")
    found = [one if isinstance(one, Endpoint) else Endpoint.parse(one, common) for one in given]
    endpoints = Endpoints(found)
    seconds = min(timeout, _CONNECT_TIMEOUT if len(found) == 1 else _SHORT_TIMEOUT)
    for endpoint in found:
        read_token(endpoint.token_file)

    def opener(endpoint: Endpoint) -> Link:
        return connect(
            endpoint.url,
            token=read_token(endpoint.token_file),
            ca=endpoint.ca,
            client_cert=endpoint.client_cert,
            client_key=endpoint.client_key,
            timeout=seconds,
        )

    if len(found) == 1:
        return lambda: opener(found[0])
    return routed(endpoints, opener)
