"""The edge's protocol machine on a fake wire: what it sends, what it believes, what it refuses."""

from __future__ import annotations

import pytest

from acespec_edge import _core
from acespec_edge.errors import LinkError, PeerError, UsageError
from acespec_edge.in_flight import InFlight, SentDraft
from acespec_edge.session_state import State
from tests.python.session_kit import PROMPT, fresh, opened, running, take, verdict, waits, welcomed


def test_a_whole_request() -> None:
    session = opened(stop_ids=[9])
    start = take(session, verdict(3, [10]))
    assert (start.tokens, start.accepted, start.finish) == ([10], 0, _core.Finish.none)
    first = _core.decode(session.draft([11, 12, 13], at=0.0))
    assert (first.request, first.round, first.base, first.first_node) == (1, 1, 4, 1)
    assert list(first.tokens) == [11, 12, 13]
    assert take(session, verdict(4, [20], round=1, node=2)).tokens == [11, 12, 20]
    second = _core.decode(session.draft([21], at=0.0))
    assert (second.round, second.base, second.first_node) == (2, 7, 4)
    end = take(session, verdict(7, [9], round=2, node=4, finish=_core.Finish.stop))
    assert (end.tokens, end.accepted) == ([21, 9], 1)
    assert session.state is State.IDLE
    assert (session.counters.rounds, session.counters.accepted, session.counters.committed) == (2, 3, 5)


def test_requests_are_numbered_and_counted_anew() -> None:
    session = opened(max_tokens=1)
    take(session, verdict(3, [10], finish=_core.Finish.length))
    frame = session.open([5], _core.SamplingRules(), stop_ids=[], max_tokens=4, at=0.0)
    assert _core.decode(frame).request == 2
    assert session.counters.bytes_up == len(frame)
    assert take(session, verdict(1, [6], request=2)).tokens == [6]


def test_bytes_are_counted_as_payload() -> None:
    session = running()
    frame = session.draft([1, 2, 3, 4], at=0.0)
    assert session.counters.max_draft_bytes == len(frame)
    answer = verdict(4, [5], round=1)
    take(session, answer)
    assert session.counters.bytes_down == len(verdict(3, [10])) + len(answer)
    assert session.counters.max_verdict_bytes == max(len(verdict(3, [10])), len(answer))


def test_round_trip_leaves_the_clouds_own_time_out() -> None:
    session = opened()
    start = take(session, verdict(3, [10], queue_us=100_000, verify_us=400_000), at=2.0)
    assert start.round_trip == pytest.approx(1.5)
    assert start.rough and start.answered, "the Open carried the prompt"
    frame = session.draft([1], at=10.0)
    answer = verdict(4, [5], round=1, queue_us=20_000, verify_us=80_000)
    event = take(session, answer, at=10.2)
    assert event.round_trip == pytest.approx(0.1) and not event.rough
    assert (event.bytes_up, event.bytes_down) == (len(frame), len(answer))
    assert (event.queue, event.verify, event.nodes) == pytest.approx((0.02, 0.08, 1))
    assert session.counters.verify == pytest.approx(0.48)


def test_a_round_trip_is_never_negative() -> None:
    session = opened()
    assert take(session, verdict(3, [10], verify_us=4_000_000), at=1.0).round_trip == 0.0


def test_free_running_verdicts_follow_each_other() -> None:
    session = opened(free_run=True, max_tokens=3)
    assert take(session, verdict(3, [10])).tokens == [10]
    assert take(session, verdict(4, [11])).tokens == [11]
    assert take(session, verdict(5, [12], finish=_core.Finish.length)).finish == _core.Finish.length
    assert session.counters.rounds == 0


def test_a_draft_into_a_free_run_is_matched_by_the_shared_rule() -> None:
    session = opened(free_run=True)
    take(session, verdict(3, [10]))
    session.draft([11, 12, 13], at=0.0)
    take(session, verdict(4, [11]))  # it crossed the draft, and agrees with it
    assert waits(session)
    event = take(session, verdict(5, [20], round=1, node=2))
    assert (event.tokens, event.accepted) == ([12, 20], 1)


def test_a_draft_that_a_crossing_verdict_overtakes_is_not_waited_for() -> None:
    session = opened(free_run=True)
    take(session, verdict(3, [10]))
    session.draft([11, 12], at=0.0)
    take(session, verdict(4, [40]))
    assert not waits(session)
    assert _core.decode(session.draft([41], at=0.0)).base == 5


def test_cancel_ends_with_the_clouds_last_word() -> None:
    session = running()
    session.draft([11], at=0.0)
    session.cancel()
    take(session, verdict(4, [12], round=1))
    assert session.state is State.CANCELLING
    take(session, verdict(5, [], round=1, finish=_core.Finish.cancelled))
    assert session.state is State.IDLE


def test_a_cancel_that_crosses_the_end_needs_no_answer() -> None:
    session = running(max_tokens=2)
    session.draft([], at=0.0)
    session.cancel()
    take(session, verdict(4, [12], round=1, finish=_core.Finish.length))
    assert session.state is State.IDLE


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (verdict(4, [1], round=1, request=2), "request 2"),
        (verdict(5, [1], round=1), "base 5"),
        (verdict(4, [1], round=2), "round 2"),
        (verdict(4, [1], round=0), "round 0"),
        (verdict(4, [1], round=1, node=3), "node 3"),
        (verdict(4, [64], round=1), "token 64"),
        (verdict(4, [], round=1, node=1, finish=_core.Finish.stop), "ends for a stop id"),
        (verdict(4, [9, 1], round=1), "after a stop id"),
        (verdict(4, [9], round=1), "after a stop id"),
        (verdict(4, [1], round=1, finish=_core.Finish.length), "ends for length after 2"),
        (verdict(4, [1] * 4, round=1, node=2), "max_tokens is 6"),
        (verdict(4, [1] * 3, round=1, node=2), "without an end"),
        (verdict(4, [1], round=1, finish=_core.Finish.cancelled), "not cancelled"),
        (_core.encode(_core.Welcome(max_context=1, max_nodes=1)), "Welcome while this session is running"),
        (_core.encode(_core.Cancel(request=1)), "Cancel"),
    ],
)
def test_what_the_protocol_does_not_allow_is_a_peer_error(data: bytes, complaint: str) -> None:
    session = opened(max_tokens=6, stop_ids=[9])
    take(session, verdict(3, [10]))
    session.draft([11, 12], at=0.0)
    with pytest.raises(PeerError, match=complaint):
        session.receive(data, 0.0)


def test_bytes_that_are_no_message_are_a_peer_error() -> None:
    with pytest.raises(PeerError):
        opened().receive(b"\x00" * 16, 0.0)


def test_nothing_may_follow_the_end() -> None:
    session = opened(max_tokens=1)
    take(session, verdict(3, [10], finish=_core.Finish.length))
    with pytest.raises(PeerError, match="Verdict while this session is idle"):
        session.receive(verdict(4, [11]), 0.0)


def test_w3_a_verdict_delivered_twice_is_refused_before_it_changes_anything() -> None:
    session = running()
    session.draft([11], at=0.0)
    twice = verdict(4, [12], round=1, node=1)
    take(session, twice)
    with pytest.raises(PeerError, match="base 4"):
        session.receive(twice, 0.0)
    assert session.committed == 6


def test_calls_out_of_order_are_the_callers_mistake() -> None:
    session = fresh()
    with pytest.raises(UsageError, match="Open cannot be sent"):
        session.open(PROMPT, _core.SamplingRules(), stop_ids=[], max_tokens=1, at=0.0)
    session.hello()
    with pytest.raises(UsageError, match="Hello cannot be sent"):
        session.hello()
    with pytest.raises(UsageError, match="Draft cannot be sent"):
        welcomed().draft([], at=0.0)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("tokenizer", UsageError),
        ("request", UsageError),
        ("unauthorized", UsageError),
        ("version", PeerError),
        ("protocol", PeerError),
        ("internal", PeerError),
        ("busy", LinkError),
    ],
)
def test_a_fault_becomes_the_error_of_who_has_to_act(code: str, kind: type[Exception]) -> None:
    session = fresh()
    session.hello()
    fault = _core.Fault(code=getattr(_core.FaultCode, code), message="what happened", retry_after_ms=1500)
    with pytest.raises(kind, match="what happened") as caught:
        session.receive(_core.encode(fault), 0.0)
    assert session.state is State.CLOSED
    if isinstance(caught.value, LinkError):
        assert caught.value.retry_after == 1.5


def test_a_fault_of_a_request_leaves_the_session_usable() -> None:
    session = opened()
    fault = _core.Fault(request=1, code=_core.FaultCode.request, message="too long")
    with pytest.raises(UsageError, match="too long"):
        session.receive(_core.encode(fault), 0.0)
    assert session.state is State.IDLE
    session.open(PROMPT, _core.SamplingRules(), stop_ids=[], max_tokens=1, at=0.0)


def test_a_fault_of_a_cancelled_request_ends_it() -> None:
    session = opened()
    session.cancel()
    event = take(session, _core.encode(_core.Fault(request=1, code=_core.FaultCode.busy, message="late")))
    assert (event.tokens, event.finish) == ([], _core.Finish.cancelled)
    assert session.state is State.IDLE


@pytest.mark.parametrize("idle", [False, True])
def test_a_fault_of_a_request_that_does_not_run_is_a_peer_error(idle: bool) -> None:
    session = opened(max_tokens=1)
    if idle:
        take(session, verdict(3, [10], finish=_core.Finish.length))
    fault = _core.Fault(request=1 if idle else 2, code=_core.FaultCode.request, message="whose?")
    with pytest.raises(PeerError, match="fault of request"):
        session.receive(_core.encode(fault), 0.0)


def test_another_protocol_version_is_refused() -> None:
    session = fresh()
    session.hello()
    welcome = _core.Welcome(version=_core.PROTOCOL_VERSION + 1, max_context=1, max_nodes=1)
    with pytest.raises(PeerError, match="protocol"):
        session.receive(_core.encode(welcome), 0.0)
    assert session.state is State.CLOSED


def test_the_clouds_close_says_why() -> None:
    session = opened()
    with pytest.raises(LinkError, match="maintenance"):
        session.receive(_core.encode(_core.Close(reason="maintenance")), 0.0)
    assert session.state is State.CLOSED


def test_rounds_wrap() -> None:
    session = running()
    session._in_flight = InFlight(4, SentDraft(65_533, False, 0.0, 0))
    for base, number in enumerate((65_534, 65_535, 0, 1), start=4):
        assert _core.decode(session.draft([], at=0.0)).round == number
        take(session, verdict(base, [5], round=number))
    assert session.counters.rounds == 4
