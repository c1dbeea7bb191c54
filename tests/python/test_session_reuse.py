"""What an edge does not send because the cloud keeps it, and what happens when the cloud does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from acespec_edge import _core
from acespec_edge.errors import LinkError, PeerError
from acespec_edge.known_contexts import KnownContexts
from acespec_edge.prefix import digest_of, text_of
from acespec_edge.prompt_codec import expand
from acespec_edge.session import EdgeSession
from acespec_edge.session_events import Committed, Repeated
from acespec_edge.session_state import State
from tests.python.session_kit import verdict

KEY = bytes(range(16))
PROMPT = [(3 * place) % 61 for place in range(100)]
GREEDY = _core.SamplingRules()
LENGTH = _core.Finish.length


def greeted(
    contexts: KnownContexts | None = None, *, key: bytes = KEY, keep_s: int = 300, taken: bool = True
) -> EdgeSession:
    session = EdgeSession(tokenizer=bytes(32), vocabulary=64, drafter="d", contexts=contexts)
    session.hello()
    welcome = _core.Welcome(vocabulary=64, max_context=1000, max_nodes=64, session=key, keep_s=keep_s)
    session.receive(_core.encode(welcome), 0.0)
    if taken:
        session.taken()
    return session


def ask(session: EdgeSession, prompt: Sequence[int], **options: Any) -> _core.Open:
    frame = session.open(prompt, GREEDY, **{"stop_ids": [], "max_tokens": 5, "at": 0.0} | options)
    message = _core.decode(frame)
    assert isinstance(message, _core.Open)
    return message


def fault(code: _core.FaultCode, request: int) -> bytes:
    return _core.encode(_core.Fault(request=request, code=code, message="why"))


def prompt_of(message: _core.Open) -> list[int]:
    return expand(message.prompt_zstd, 1000) if message.prompt_zstd else message.prompt


def after_one_request(contexts: KnownContexts | None = None) -> EdgeSession:
    """It has committed 7 and 8 behind the prompt."""
    session = greeted(contexts)
    assert ask(session, PROMPT, max_tokens=2).held == 0
    session.receive(verdict(100, [7]), 0.0)
    session.draft([], at=0.0)
    session.receive(verdict(101, [8], round=1, finish=LENGTH), 0.0)
    return session


def test_the_second_prompt_is_sent_from_where_it_leaves_the_first() -> None:
    session = after_one_request()
    message = ask(session, [*PROMPT, 7, 8, 9, 10])
    assert (message.held, message.prompt) == (102, [9, 10])
    assert message.held_digest == digest_of(text_of([*PROMPT, 7, 8]))
    answer = session.receive(verdict(104, [1], request=2), 0.0)
    assert isinstance(answer, Committed) and session.committed == 105


def test_a_prompt_that_is_kept_whole_is_not_sent_at_all() -> None:
    message = ask(after_one_request(), PROMPT)
    assert (message.held, prompt_of(message)) == (100, [])


def test_a_long_prompt_is_compressed() -> None:
    message = ask(greeted(), PROMPT * 3)
    assert message.prompt == [] and prompt_of(message) == PROMPT * 3
    assert len(message.prompt_zstd) < 2 * 300


def test_what_the_cloud_reused_is_counted_once() -> None:
    session = after_one_request()
    ask(session, [*PROMPT, 7, 8, 9])
    answer = session.receive(_core.encode(_core.Verdict(request=2, base=103, tokens=[1], reused=99)), 0.0)
    assert isinstance(answer, Committed) and answer.reused == session.counters.reused == 99
    session.draft([], at=0.0)
    session.receive(_core.encode(_core.Verdict(request=2, base=104, round=1, tokens=[1], reused=5)), 0.0)
    assert session.counters.reused == 99


def test_the_last_token_of_a_prompt_cannot_have_been_reused() -> None:
    session = after_one_request()
    ask(session, PROMPT)
    with pytest.raises(PeerError, match="reuses 100 of 100 tokens"):
        session.receive(_core.encode(_core.Verdict(request=2, base=100, tokens=[1], reused=100)), 0.0)


def test_the_round_trip_of_what_was_repeated_is_that_of_the_second_time() -> None:
    session = after_one_request()
    ask(session, [*PROMPT, 7, 8, 9], at=10.0)
    event = session.receive(fault(_core.FaultCode.gone, 2), 11.0)
    assert isinstance(event, Repeated)
    answer = session.receive(verdict(103, [4], request=2), 11.5)
    assert isinstance(answer, Committed)
    assert (answer.round_trip, answer.bytes_up) == (0.5, len(event.frames[0]))


def test_a_context_that_is_gone_is_sent_whole_with_the_drafts_that_followed() -> None:
    session = after_one_request()
    first = ask(session, [*PROMPT, 7, 8, 9])
    drafts = [session.draft([4, 5], at=0.0), session.draft([6], [1], at=0.0)]
    sent = session.counters.bytes_up
    event = session.receive(fault(_core.FaultCode.gone, 2), 0.0)
    assert isinstance(event, Repeated) and event.frames[1:] == drafts
    again = _core.decode(event.frames[0])
    assert (again.request, again.held, again.held_digest) == (first.request, 0, b"")
    assert prompt_of(again) == [*PROMPT, 7, 8, 9]
    assert session.state is State.RUNNING
    assert session.counters.bytes_up == sent + sum(map(len, event.frames))
    session.receive(verdict(103, [4], request=2), 0.0)
    accepted = session.receive(verdict(104, [2], request=2, round=2, node=2), 0.0)
    assert isinstance(accepted, Committed) and accepted.tokens == [5, 2]


def test_only_what_was_built_upon_can_be_gone_and_only_once() -> None:
    session = greeted()
    ask(session, PROMPT)
    with pytest.raises(PeerError, match="that was not built upon"):
        session.receive(fault(_core.FaultCode.gone, 1), 0.0)
    session = after_one_request()
    ask(session, PROMPT)
    session.receive(fault(_core.FaultCode.gone, 2), 0.0)
    with pytest.raises(PeerError, match="that was not built upon"):
        session.receive(fault(_core.FaultCode.gone, 2), 0.0)
    session = after_one_request()
    ask(session, PROMPT)
    session.receive(verdict(100, [1], request=2), 0.0)
    with pytest.raises(PeerError, match="that was not built upon"):
        session.receive(fault(_core.FaultCode.gone, 2), 0.0)


def test_a_cancelled_request_that_builds_upon_what_is_gone_just_ends() -> None:
    session = after_one_request()
    ask(session, PROMPT)
    session.cancel()
    event = session.receive(fault(_core.FaultCode.gone, 2), 0.0)
    assert isinstance(event, Committed) and event.finish == _core.Finish.cancelled
    assert session.state is State.IDLE


def test_a_request_that_failed_leaves_nothing_to_build_upon() -> None:
    session = greeted()
    ask(session, PROMPT)
    with pytest.raises(LinkError):
        session.receive(fault(_core.FaultCode.busy, 1), 0.0)
    assert ask(session, PROMPT).held == 0


def test_a_request_that_a_busy_cloud_has_ended_is_kept() -> None:
    session = greeted()
    ask(session, PROMPT)
    session.receive(verdict(100, [7]), 0.0)
    session.draft([1, 2], at=0.0)
    with pytest.raises(LinkError):
        session.receive(fault(_core.FaultCode.busy, 1), 0.0)
    assert ask(session, [*PROMPT, 7]).held == 101


def test_a_new_connection_goes_on_with_the_session_of_the_last() -> None:
    contexts = KnownContexts()
    first = greeted(contexts)
    ask(first, PROMPT)
    first.receive(verdict(100, [7]), 0.0)  # and the link is lost
    second = EdgeSession(tokenizer=bytes(32), vocabulary=64, drafter="d", contexts=contexts)
    assert _core.decode(second.hello()).resume == KEY
    assert ask(greeted(contexts), [*PROMPT, 7]).held == 101
    assert ask(greeted(contexts, key=bytes(16)), [*PROMPT, 7]).held == 0, "the cloud knows it no more"


def test_a_connection_that_is_not_taken_leaves_everything_as_it_was() -> None:
    """One that was made too late is closed, perhaps while a request runs on another."""
    contexts = KnownContexts()
    session = after_one_request(contexts)
    greeted(contexts, key=bytes(16), taken=False)
    assert ask(session, PROMPT).held == 100
    again = EdgeSession(tokenizer=bytes(32), vocabulary=64, drafter="d", contexts=contexts)
    assert _core.decode(again.hello()).resume == KEY


def test_a_first_hello_resumes_nothing() -> None:
    session = EdgeSession(tokenizer=bytes(32), vocabulary=64, drafter="d")
    assert _core.decode(session.hello()).resume == b""
