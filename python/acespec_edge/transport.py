"""The only socket code of the edge: a link carries whole messages and stamps their arrival."""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from acespec_edge.address import TOKEN_VARIABLE, parse_address
from acespec_edge.errors import LinkError, UsageError
from acespec_edge.heartbeat import LEAST_BOUND, Heartbeat
from acespec_edge.redaction import discreet
from acespec_edge.tls import client_context, why

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

MAX_MESSAGE: Final = 1 << 20
"""Bytes of the largest message accepted, as in the codec's limits."""

_SEND_TIMEOUT: Final = 15.0
_CLOSE_TIMEOUT: Final = 1.0
_TICK: Final = 0.5
"""Seconds within which the reader notices that somebody waits."""

_LAST_LOOK: Final = 0.1
"""Seconds of reading between the doubt and the end."""

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Received:
    """One message and the monotonic second at which it was whole on this side."""

    data: bytes
    at: float


class Link(Protocol):
    """A connection that carries whole messages both ways, in order. All waits are bounded.

    One thread sends and receives; close() may be called from any thread, and more than once.
    """

    bytes_up: int
    """Payload bytes sent since the link opened."""
    bytes_down: int

    def send(self, frame: bytes) -> None:
        """Raises LinkError when the link is gone or takes nothing for too long."""

    def receive(self, timeout: float) -> Received | None:
        """The next message; None when none came within ``timeout`` seconds. Raises LinkError when the
        link is gone and everything that arrived before has been handed out.
        """

    def close(self) -> None:
        """Ends the link and its threads; never raises."""


Connector = Callable[[], Link]
"""Opens a link. Raises LinkError."""


class WebSocketLink:
    """A Link over a WebSocket, with a thread of its own that stamps arrivals however busy the caller is.

    It pings, too: a peer that is silent for longer than its Heartbeat allows is lost, and the connection is
    broken.
    """

    def __init__(
        self, opening: contextlib.AbstractContextManager[ClientConnection], where: str, least_bound: float
    ) -> None:
        """Enters ``opening`` and owns the connection it yields. ``where`` names the peer in messages."""
        self._stack = contextlib.ExitStack()
        self._socket = self._stack.enter_context(opening)
        _bound_sends(self._socket.socket)
        self._where = where
        self._inbox: queue.SimpleQueue[Received | LinkError] = queue.SimpleQueue()
        self._lost: LinkError | None = None
        self._silent: LinkError | None = None
        """What breaking the connection for silence is reported as, whoever meets it first."""
        now = time.monotonic()
        self._heartbeat = Heartbeat(now, least_bound=least_bound)
        self._pong: threading.Event | None = None
        self._doubted = False
        self._sending = threading.Lock()
        self._offered = 0
        self._attended = now
        self.bytes_up = 0
        self.bytes_down = 0
        self._reader = threading.Thread(target=self._read, name="acespec-link", daemon=True)
        self._reader.start()

    def send(self, frame: bytes) -> None:
        from websockets.exceptions import WebSocketException

        self._offered += len(frame)
        self._attended = time.monotonic()
        try:
            with self._sending:
                self._socket.send(frame)
        except (WebSocketException, OSError) as error:
            raise self._gone(error) from error
        self.bytes_up += len(frame)

    def receive(self, timeout: float) -> Received | None:
        self._attended = time.monotonic()
        if self._lost is not None:
            raise self._lost
        try:
            item = self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, LinkError):
            self._lost = item
            raise item
        self.bytes_down += len(item.data)
        return item

    def ping(self, timeout: float) -> float:
        """Seconds that a ping takes. Raises LinkError when it is not answered within ``timeout``."""
        from websockets.exceptions import WebSocketException

        began = time.monotonic()
        try:
            answered = self._socket.ping()
        except (WebSocketException, OSError) as error:
            raise self._gone(error) from error
        if not answered.wait(timeout):
            raise LinkError(f"{self._where} answers no ping within {timeout:g} s")
        return time.monotonic() - began

    def close(self) -> None:
        from websockets.exceptions import WebSocketException

        with contextlib.suppress(WebSocketException, OSError):
            self._stack.close()
        self._reader.join(_CLOSE_TIMEOUT)

    def _read(self) -> None:
        from websockets.exceptions import WebSocketException

        try:
            while True:
                try:
                    data = self._socket.recv(timeout=self._beat())
                except TimeoutError:
                    continue
                at = time.monotonic()
                self._heartbeat.heard(at)
                if isinstance(data, str):
                    self._inbox.put(LinkError(f"{self._where} sent text where binary messages are spoken"))
                    return
                self._inbox.put(Received(data, at))
        except (WebSocketException, OSError) as error:
            self._inbox.put(self._gone(error))
        except LinkError as error:
            self._inbox.put(error)

    def _beat(self) -> float:
        """Looks after the heartbeat; returns for how many seconds that will do. Raises LinkError when the
        peer is lost."""
        heartbeat, now = self._heartbeat, time.monotonic()
        if self._pong is not None and self._pong.is_set():
            heartbeat.answered(self._socket.latency)
            self._pong = None
        ping_at = heartbeat.ping_at(attended=now - self._attended < 2 * _TICK)
        due = ping_at is not None and ping_at <= now
        if due or (ping_at is None and self._pong is None):
            if self._ping() or due:
                heartbeat.asked(now, self._offered)
            ping_at = None
        lost_at = heartbeat.lost_at()
        if lost_at is None or lost_at > now:
            self._doubted = False
            return min(_TICK, *(time - now for time in (lost_at, ping_at) if time is not None))
        if self._doubted:
            raise self._give_up()
        # After a standstill of this machine the answer may be there, but not read.
        self._doubted = True
        return _LAST_LOOK

    def _ping(self) -> bool:
        """Whether a ping could leave: behind a send that is at work it would wait without an end."""
        from websockets.exceptions import WebSocketException

        if not self._sending.acquire(blocking=False):
            return False
        try:
            self._pong = self._socket.ping()
        except (WebSocketException, OSError):
            return False  # reading tells, after what arrived before
        finally:
            self._sending.release()
        return True

    def _give_up(self) -> LinkError:
        """Breaks the connection, which frees whoever is sending."""
        self._silent = LinkError(
            f"lost the connection to {self._where}: no sign of life for {self._heartbeat.bound:.1f} s"
        )
        with contextlib.suppress(OSError):
            self._socket.socket.shutdown(socket.SHUT_RDWR)
        return self._silent

    def _gone(self, error: Exception) -> LinkError:
        if self._silent is not None:
            return self._silent
        cause = error.__cause__ or error
        return LinkError(f"lost the connection to {self._where}: {cause or type(cause).__name__}")


def connect(
    url: str,
    *,
    token: str | None = None,
    ca: Path | None = None,
    client_cert: Path | None = None,
    client_key: Path | None = None,
    timeout: float = 10.0,
    least_bound: float = LEAST_BOUND,
) -> WebSocketLink:
    """Opens a WebSocket link to ``url`` (``wss://host[:port]/path``, or ``ws://`` in trusted networks).

    ``token``: bearer token for the Authorization header. ``ca``, ``client_cert``, ``client_key``: see
    tls.client_context; TLS is 1.2 or newer and always verified. ``timeout``: seconds for the whole opening.
    ``least_bound``: seconds that the answer to a ping may take at least before the link counts as lost (see
    Heartbeat). Raises UsageError for a bad address, file or token, LinkError when the cloud cannot be
    reached.
    """
    from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus, WebSocketException
    from websockets.sync.client import connect as open_websocket

    parts = parse_address(url)
    where = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    options: dict[str, Any] = {}
    if parts.scheme == "wss":
        options["ssl"] = client_context(ca, client_cert, client_key)
    for name, path in (("ca", ca), ("client_cert", client_cert), ("client_key", client_key)):
        if path is not None and parts.scheme != "wss":
            raise UsageError(f"{name} is {str(path)!r}, but {url} is not encrypted: give a wss:// address")
    if parts.hostname in _LOOPBACK:
        options["proxy"] = None
    try:
        opening = open_websocket(
            url,
            additional_headers={"Authorization": f"Bearer {token}"} if token else None,
            compression=None,
            max_size=MAX_MESSAGE,
            open_timeout=timeout,
            ping_interval=None,
            close_timeout=_CLOSE_TIMEOUT,
            logger=discreet("acespec.link"),
            **options,
        )
        return WebSocketLink(opening, where, least_bound)
    except InvalidStatus as error:
        raise _refusal(where, error.response.status_code) from error
    except ssl.SSLError as error:
        raise LinkError(f"no secure connection to {where}: {why(error)}") from error
    except (InvalidMessage, ConnectionClosed) as error:
        hint = "is it a wss:// address?" if parts.scheme == "ws" else _no_answer(client_cert)
        raise LinkError(f"no answer to the opening from {where}: {hint}") from error
    except (WebSocketException, OSError) as error:
        raise LinkError(f"cannot reach the cloud at {where}: {error or type(error).__name__}") from error


def local_connector(target: str) -> Connector:
    """A connector to a cloud in this process, for ``cloud="local"``; the cloud package registers it."""
    for point in entry_points(group="acespec.connectors", name="local"):
        open_local = point.load()
        return lambda: open_local(target)
    raise UsageError("cloud is 'local', but no local one is installed: pip install 'acespec-edge[cloud]'")


def _bound_sends(sock: socket.socket) -> None:
    """Has the kernel give the connection up when sent bytes stay unacknowledged, so that no send blocks for
    ever."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # It may be closed again already; then reading tells, after what arrived before.
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1e3 * _SEND_TIMEOUT))


def _no_answer(client_cert: Path | None) -> str:
    """What it mostly is when the connection ends between TLS and HTTP: a server of TLS 1.3 judges client
    certificates after the handshake, and its alert is lost when the connection is gone before it is read."""
    if client_cert is None:
        return "if it wants a client certificate, give --client-cert and --client-key"
    return f"it may not take the client certificate {str(client_cert)!r} (another authority, expired)"


def _refusal(where: str, status: int) -> LinkError:
    hint = {
        401: "it wants a token: give a token file or set " + TOKEN_VARIABLE,
        403: "it does not take this token",
        404: "nothing is served at this path; /v1/spec is usual",
        503: "it is busy, try again later",
    }.get(status, "it does not speak the protocol at this address")
    return LinkError(f"{where} refused the connection with HTTP status {status}: {hint}")
