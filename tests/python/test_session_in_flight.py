"""The edge's protocol machine with several drafts in flight: what it sends, what it waits for, what it
believes.
"""

from __future__ import annotations

from typing import Any

import pytest

from acespec_edge import _core
from acespec_edge.errors import PeerError, UsageError
from acespec_edge.session import EdgeSession
from acespec_edge.session_state import State
from tests.python.session_kit import opened, running, take, unanswered, verdict, waits, welcomed


def sent(frame: bytes) -> Any:
    return _core.decode(frame)


def test_a_delta_names_its_parent_across_drafts() -> None:
    session = running()
    first = sent(session.draft([11, 12, 13], [0, 0, 2], at=0.0))
    assert (first.round, first.first_node, list(first.parent_offsets)) == (1, 1, [0, 0, 1])
    assert (session.next_node, session.held, unanswered(session)) == (4, 3, 1)
    delta = sent(session.draft([14, 15], [3, 1], at=1.0))
    assert (delta.round, delta.base, delta.first_node) == (2, 4, 4)
    assert list(delta.parent_offsets) == [1, 4]
    assert (session.held, unanswered(session)) == (5, 2)
    event = take(session, verdict(4, [20], round=2, node=4), at=1.5)
    assert (event.tokens, event.accepted, event.nodes) == ([12, 13, 14, 20], 3, 5)
    assert (event.round_trip, event.answered) == (0.5, True)
    assert (session.held, unanswered(session), waits(session)) == (0, 0, False)
    assert session.counters.rounds == 1


def test_a_chain_costs_no_offsets_however_it_is_given() -> None:
    session = running()
    assert list(sent(session.draft([11, 12], [0, 1], at=0.0)).parent_offsets) == []
    assert list(sent(session.draft([13, 14], [2, 3], at=0.0)).parent_offsets) == [1, 1]
    assert list(sent(session.draft([21, 22], at=0.0)).parent_offsets) == []


def test_what_still_descends_is_waited_for_and_what_does_not_is_not() -> None:
    session = running()
    session.draft([11, 12], at=0.0)
    session.draft([13, 14], [2, 3], at=0.0)
    session.draft([15], [1], at=0.0)
    event = take(session, verdict(4, [13], round=1, node=2))
    assert (event.tokens, event.nodes) == ([11, 12, 13], 2)
    assert waits(session) and (session.held, unanswered(session)) == (1, 2)
    session.draft([16], [4], at=0.0)
    event = take(session, verdict(7, [17], round=3, node=4))
    assert event.tokens == [14, 17] and event.nodes == 1
    assert (waits(session), session.held, unanswered(session)) == (False, 0, 0)
    session.draft([18], at=0.0)
    assert waits(session) and unanswered(session) == 1


def test_a_verdict_accepts_only_what_it_can_have_seen() -> None:
    session = running()
    session.draft([11], at=0.0)
    session.draft([12], [1], at=0.0)
    with pytest.raises(PeerError, match="node 2, which is not in the tree"):
        session.receive(verdict(4, [13], round=1, node=2), 0.0)
    session = running()
    session.draft([11], at=0.0)
    session.draft([11, 12], at=0.0)
    with pytest.raises(PeerError, match="node 2, which is not in the tree"):
        session.receive(verdict(4, [13], round=2, node=2), 0.0)
    assert take(session, verdict(4, [13], round=2, node=3)).tokens == [11, 12, 13]


def test_drafts_may_be_sent_before_the_first_token() -> None:
    session = opened()
    session.draft([10, 11], at=0.0)
    with pytest.raises(PeerError, match="round 1: round 0, 1 was expected"):
        session.receive(verdict(3, [12], round=1, node=2), 0.0)
    event = take(session, verdict(3, [10]))
    assert event.rough and event.nodes == 0 and waits(session)
    assert take(session, verdict(4, [12], round=1, node=2)).tokens == [11, 12]


def test_a_draft_that_was_overtaken_has_no_verdict() -> None:
    session = running()
    session.draft([11], at=0.0)
    session.draft([12], [1], at=0.0)
    take(session, verdict(4, [20], round=1))
    assert not waits(session) and unanswered(session) == 0
    with pytest.raises(PeerError, match="verdict of round 2: no verdict was expected"):
        session.receive(verdict(5, [21], round=2), 0.0)


def test_a_plain_step_from_before_the_draft_may_come_late() -> None:
    session = opened(free_run=True)
    take(session, verdict(3, [10]))
    session.draft([11], at=0.0)
    take(session, verdict(4, [20]))
    assert not waits(session), "the cloud drops the draft, and does not run freely after it"
    late = take(session, verdict(5, [21]))
    assert (late.answered, late.round_trip, late.nodes) == (False, None, 0)
    assert not waits(session)
    assert sent(session.draft([22], at=0.0)).base == 6


def test_a_plain_step_that_an_overtaken_draft_allowed_may_come_late() -> None:
    session = opened(free_run=True)
    take(session, verdict(3, [10]))
    session.draft([11], at=0.0, free_run=True)
    session.draft([12], [1], at=0.0)
    take(session, verdict(4, [20]))
    assert not waits(session) and unanswered(session) == 0
    late = take(session, verdict(5, [21], round=1))
    assert late.answered and late.nodes == 0
    assert take(session, verdict(6, [22], round=1)).tokens == [22]
    with pytest.raises(PeerError, match="round 2"):
        session.receive(verdict(7, [23], round=2), 0.0)


def test_a_free_run_is_waited_for_until_a_draft_ends_it() -> None:
    session = running()
    session.draft([11], at=0.0, free_run=True)
    take(session, verdict(4, [20], round=1))
    assert waits(session) and session.held == 0
    session.draft([21], at=0.0)
    take(session, verdict(5, [30], round=1))
    assert not waits(session)
    assert session.counters.rounds == 1


def test_a_plain_step_is_waited_for_once() -> None:
    session = running()
    session.draft([], at=0.0)
    session.draft([], at=0.0)
    assert waits(session) and unanswered(session) == 2
    assert take(session, verdict(4, [11], round=1)).nodes == 0
    assert not waits(session) and unanswered(session) == 0
    session.draft([12], at=0.0)
    session.draft([], at=0.0)
    assert take(session, verdict(5, [13], round=4, node=1)).tokens == [12, 13]
    assert not waits(session)


def test_nodes_past_the_end_are_not_counted_as_verified() -> None:
    session = running(max_tokens=4)
    session.draft([11, 12, 13, 14], at=0.0)
    event = take(session, verdict(4, [13], round=1, node=2, finish=_core.Finish.length))
    assert event.nodes == 2, "the third token is the target's own"
    assert (waits(session), session.held, unanswered(session)) == (False, 0, 0)
    assert session.state is State.IDLE


def test_a_cancelled_request_owes_its_end() -> None:
    session = running()
    session.cancel()
    assert waits(session)
    event = take(session, verdict(4, [], finish=_core.Finish.cancelled))
    assert (event.answered, event.round_trip, event.nodes) == (False, None, 0)
    assert not waits(session)


def full(session: EdgeSession) -> None:
    session.draft([11] * 8, at=0.0)


def many(session: EdgeSession) -> None:
    for _ in range(64):
        session.draft([], at=0.0)


def gone(session: EdgeSession) -> None:
    session.draft([11, 12], [0, 0], at=0.0)
    session.draft([13], [2], at=0.0)
    take(session, verdict(4, [21], round=1, node=1))


@pytest.mark.parametrize(
    ("before", "tokens", "parents", "complaint"),
    [
        (full, [1], None, "the cloud takes 8, and may still hold 8"),
        (many, [1], None, "64 drafts have no verdict yet"),
        (gone, [1], [2], "the parent of node 4 is 2"),
        (gone, [1], [3], "the parent of node 4 is 3"),
        (gone, [1], [4], "the parent of node 4 is 4"),
        (gone, [1], [-1], "the parent of node 4 is -1"),
        (gone, [1, 2], [0], "2 nodes has 1 parents"),
    ],
)
def test_what_the_cloud_would_not_take_is_not_sent(
    before: Any, tokens: list[int], parents: list[int] | None, complaint: str
) -> None:
    session = running()
    before(session)
    state = (session.next_node, session.held, unanswered(session), session.counters.bytes_up)
    with pytest.raises(UsageError, match=complaint):
        session.draft(tokens, parents, at=0.0)
    assert state == (session.next_node, session.held, unanswered(session), session.counters.bytes_up)


def test_a_parent_too_far_back_is_not_sent() -> None:
    session = welcomed(max_nodes=300)
    session.open([1, 2, 3], _core.SamplingRules(), stop_ids=[], max_tokens=9, at=0.0)
    session.draft([11] * 256, at=0.0)
    with pytest.raises(UsageError, match=r"the parent of node 257 is 1; 0 .* from 2 to 256"):
        session.draft([12], [1], at=0.0)
    assert list(sent(session.draft([12], [2], at=0.0)).parent_offsets) == [255]


def test_a_mode_of_chains_takes_one_at_a_time() -> None:
    session = EdgeSession(tokenizer=bytes(32), vocabulary=64, drafter="d")
    session.hello()
    session.receive(_core.encode(_core.Welcome(vocabulary=64, max_context=100, max_nodes=8)), 0.0)
    residual = _core.Mode.residual
    session.open([1, 2, 3], _core.SamplingRules(), stop_ids=[], max_tokens=9, at=0.0, mode=residual)
    take(session, verdict(3, [10]))
    session.draft([11], at=0.0, weights=[7])
    with pytest.raises(UsageError, match="one draft at a time"):
        session.draft([12], at=0.0, weights=[7])
