"""Where a session of the edge stands, and which messages lead where."""

from __future__ import annotations

from enum import Enum
from typing import Final

from acespec_edge import _core


class State(Enum):
    """Where a session stands."""

    NEW = "new"
    GREETING = "waiting for the cloud's welcome"
    IDLE = "idle"
    RUNNING = "running a request"
    CANCELLING = "waiting for the end of a cancelled request"
    CLOSED = "closed"


SENDING: Final = {
    (State.NEW, _core.Hello): State.GREETING,
    (State.IDLE, _core.Open): State.RUNNING,
    (State.RUNNING, _core.Draft): State.RUNNING,
    (State.RUNNING, _core.Cancel): State.CANCELLING,
    (State.GREETING, _core.Close): State.CLOSED,
    (State.IDLE, _core.Close): State.CLOSED,
    (State.RUNNING, _core.Close): State.CLOSED,
    (State.CANCELLING, _core.Close): State.CLOSED,
}
"""What may be sent when, and where it leads. All else is the caller's mistake."""

RECEIVING: Final = {
    (State.GREETING, _core.Welcome): State.IDLE,
    (State.GREETING, _core.Fault): State.CLOSED,
    (State.GREETING, _core.Close): State.CLOSED,
    (State.IDLE, _core.Fault): State.CLOSED,
    (State.IDLE, _core.Close): State.CLOSED,
    (State.RUNNING, _core.Verdict): State.RUNNING,
    (State.RUNNING, _core.Fault): State.IDLE,
    (State.RUNNING, _core.Close): State.CLOSED,
    (State.CANCELLING, _core.Verdict): State.CANCELLING,
    (State.CANCELLING, _core.Fault): State.IDLE,
    (State.CANCELLING, _core.Close): State.CLOSED,
}
"""What may arrive when, and where it leads. All else is the peer's. A finishing verdict leads to IDLE,
and a fault of the session (request 0) to CLOSED.
"""
