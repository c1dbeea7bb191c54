"""The edge's protocol machine where it draws tokens itself, and where log-probabilities are asked for."""

from __future__ import annotations

from typing import Any

import pytest

from acespec_edge import _core
from acespec_edge.errors import PeerError, UsageError
from acespec_edge.session import EdgeSession
from acespec_edge.session_events import Committed
from acespec_edge.session_state import State

PROMPT = [1, 2, 3]
ROW = _core.SparseRow(head=[(7, 0.75)], tail_mass=0.25, tail=[(8, 0.125)])


def opened(**options: Any) -> EdgeSession:
    """After the first token: base 4, nothing in flight."""
    session = EdgeSession(tokenizer=bytes(32), vocabulary=64, drafter="d")
    session.hello()
    session.receive(_core.encode(_core.Welcome(vocabulary=64, max_context=100, max_nodes=8)), 0.0)
    options = {"mode": _core.Mode.residual, "stop_ids": [9], "max_tokens": 20} | options
    session.open(PROMPT, _core.SamplingRules(temperature=1.0), at=0.0, **options)
    verdict(session, 3, 0, tokens=[10], logprobs=reports(1) if "logprobs" in options else [])
    return session


def reports(count: int, top: int = 0) -> list[_core.TokenLogprob]:
    top_ones = [(token, -1.0) for token in range(top)]
    return [_core.TokenLogprob(logprob=-0.5 * number, top=top_ones) for number in range(1, count + 1)]


def verdict(session: EdgeSession, base: int, round: int, **fields: Any) -> Committed:
    event = session.receive(_core.encode(_core.Verdict(request=1, base=base, round=round, **fields)), 0.0)
    assert isinstance(event, Committed)
    return event


def test_a_rejected_token_is_drawn_here_and_committed_by_the_next_draft() -> None:
    session = opened()
    session.draft([11, 12, 13], at=0.0, weights=[5, 6, 7])
    event = verdict(session, 4, 1, accepted_node=1, sparse=ROW)
    assert (event.tokens, event.sparse, session.committed) == ([11], ROW, 5)
    more = _core.decode(session.more_samples(at=0.0))
    assert (more.base, more.round, more.more_tail, list(more.tokens)) == (5, 2, True, [])
    assert verdict(session, 5, 2, sparse=ROW).sparse == ROW
    draft = _core.decode(session.draft([21], at=0.0, weights=[8], resampled=7))
    assert (draft.base, draft.first_node, draft.resampled, list(draft.q)) == (5, 4, 7, [8])
    assert session.committed == 6
    assert verdict(session, 6, 3, accepted_node=4, tokens=[22]).tokens == [21, 22]
    assert session.committed == 8
    assert session.counters.committed == 4
    session.draft([], at=0.0)


@pytest.mark.parametrize(("token", "finish"), [(9, _core.Finish.stop), (7, _core.Finish.length)])
def test_a_drawn_token_can_be_the_last(token: int, finish: _core.Finish) -> None:
    session = opened(max_tokens=2)
    session.draft([11], at=0.0, weights=[5])
    verdict(session, 4, 1, sparse=ROW)
    session.draft([], at=0.0, resampled=token)
    event = verdict(session, 5, 2, finish=finish)
    assert (event.tokens, event.finish, session.state) == ([], finish, State.IDLE)


def test_who_draws_is_no_matter_of_choice() -> None:
    session = opened()
    with pytest.raises(UsageError, match="must not be resampled"):
        session.draft([], at=0.0, resampled=7)
    with pytest.raises(UsageError, match="no row waits"):
        session.more_samples(at=0.0)
    session.draft([11], at=0.0, weights=[5])
    verdict(session, 4, 1, sparse=ROW)
    with pytest.raises(UsageError, match="has to be resampled"):
        session.draft([], at=0.0)


@pytest.mark.parametrize(
    ("mode", "fields", "complaint"),
    [
        (_core.Mode.coupled, {"sparse": ROW}, "sparse row"),
        (_core.Mode.residual, {"accepted_node": 2, "sparse": ROW}, "sparse row"),
        (_core.Mode.residual, {"sparse": _core.SparseRow(head=[(64, 1.0)])}, "token 64"),
        (_core.Mode.residual, {"sparse": _core.SparseRow(head=[(1, 0.5)], tail=[(64, 0.1)])}, "token 64"),
        (_core.Mode.residual, {"tokens": [1], "logprobs": reports(1)}, "reports 1 log-probabilities: 0"),
    ],
)
def test_verdicts_that_cannot_be(mode: _core.Mode, fields: dict[str, Any], complaint: str) -> None:
    session = opened(mode=mode)
    weights = [5, 6] if mode == _core.Mode.residual else []
    session.draft([11, 12], at=0.0, weights=weights)
    with pytest.raises(PeerError, match=complaint):
        verdict(session, 4, 1, **fields)


def test_samples_that_were_asked_for_have_to_come() -> None:
    session = opened()
    session.draft([11], at=0.0, weights=[5])
    verdict(session, 4, 1, sparse=ROW)
    session.more_samples(at=0.0)
    with pytest.raises(PeerError, match="no tail samples"):
        verdict(session, 4, 2, tokens=[7])


def test_reports_are_one_a_token_the_drawn_one_included() -> None:
    session = opened(logprobs=0)
    session.draft([11, 12], at=0.0, weights=[5, 6])
    assert len(verdict(session, 4, 1, accepted_node=1, sparse=ROW, logprobs=reports(1)).logprobs) == 1
    session.draft([21], at=0.0, weights=[5], resampled=7)
    event = verdict(session, 6, 2, accepted_node=3, tokens=[22], logprobs=reports(3))
    assert event.tokens == [21, 22] and [report.logprob for report in event.logprobs] == [-0.5, -1.0, -1.5]


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        ([], "reports 0 log-probabilities: 2"),
        (reports(1, 2), "reports 1 log-probabilities: 2"),
        (reports(2, 1), "1 alternatives: 2"),
        ([_core.TokenLogprob(logprob=-1.0, top=[(1, -1.0), (64, -2.0)])] * 2, "token 64"),
    ],
)
def test_reports_of_the_wrong_shape(told: list[_core.TokenLogprob], complaint: str) -> None:
    session = EdgeSession(tokenizer=bytes(32), vocabulary=64, drafter="d")
    session.hello()
    session.receive(_core.encode(_core.Welcome(vocabulary=64, max_context=100, max_nodes=8)), 0.0)
    session.open(PROMPT, _core.SamplingRules(), stop_ids=[], max_tokens=9, at=0.0, logprobs=2)
    verdict(session, 3, 0, tokens=[10], logprobs=reports(1, 2))
    session.draft([11], at=0.0)
    with pytest.raises(PeerError, match=complaint):
        verdict(session, 4, 1, accepted_node=1, tokens=[12], logprobs=told)
