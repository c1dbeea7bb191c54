"""The edge's protocol machine on a fake wire: sessions as far as a test wants them, and what a cloud says."""

from __future__ import annotations

from collections.abc import Sequence

from acespec_edge import _core
from acespec_edge.session import EdgeSession
from acespec_edge.session_events import Committed, Welcomed
from acespec_edge.session_state import State

PROMPT = [1, 2, 3]


def fresh() -> EdgeSession:
    return EdgeSession(tokenizer=bytes(32), vocabulary=64, drafter="d", chunks=[7])


def welcomed(**fields: int) -> EdgeSession:
    session = fresh()
    session.hello()
    welcome = _core.Welcome(**{"vocabulary": 64, "max_context": 100, "max_nodes": 8} | fields)
    event = session.receive(_core.encode(welcome), 0.0)
    assert isinstance(event, Welcomed)
    return session


def opened(*, max_tokens: int = 20, stop_ids: Sequence[int] = (), free_run: bool = False) -> EdgeSession:
    session = welcomed()
    rules = _core.SamplingRules()
    session.open(PROMPT, rules, stop_ids=stop_ids, max_tokens=max_tokens, at=0.0, free_run=free_run)
    return session


def verdict(
    base: int,
    tokens: Sequence[int],
    *,
    round: int = 0,
    node: int = 0,
    finish: _core.Finish = _core.Finish.none,
    request: int = 1,
    queue_us: int = 0,
    verify_us: int = 0,
) -> bytes:
    return _core.encode(
        _core.Verdict(
            request=request,
            round=round,
            base=base,
            accepted_node=node,
            tokens=list(tokens),
            finish=finish,
            queue_us=queue_us,
            verify_us=verify_us,
        )
    )


def running(**options: int) -> EdgeSession:
    """After the first token: base 4, nothing in flight."""
    session = opened(**options)  # type: ignore[arg-type]
    session.receive(verdict(3, [10]), 0.0)
    return session


def take(session: EdgeSession, data: bytes, at: float = 0.0) -> Committed:
    event = session.receive(data, at)
    assert isinstance(event, Committed)
    return event


def waits(session: EdgeSession) -> bool:
    """Whether a verdict will come though nothing more is sent, so that one may be waited for."""
    running = session.state is State.RUNNING and (session.owed or session.runs_free)
    return running or session.state is State.CANCELLING


def unanswered(session: EdgeSession) -> int:
    """Drafts, and the Open, that no verdict has answered; 0 when none is to be waited for."""
    return 0 if session._in_flight is None else session._in_flight.unanswered
