"""What connections share: room for sessions and KV, the queue; and time, which runs against an edge only."""

from __future__ import annotations

import pytest

from acespec_edge import _core
from acespec_edge.errors import UsageError
from cloud_stub.session import Session
from cloud_stub.target import Target
from tests.cloud.rig import Client, scripted_rig

PROMPT = [1, 2, 3]
FaultCode = _core.FaultCode


def test_kv_is_reserved_from_open_to_release() -> None:
    rig = scripted_rig(max_context=100, kv_tokens=200)
    first, second, third = rig.client(), rig.client(), rig.client()
    assert first.open(PROMPT, max_tokens=57).tokens and rig.service.kv.reserved == 60
    assert second.open(PROMPT, max_tokens=1 << 31).tokens, "no request takes more than the context"
    assert rig.service.kv.reserved == 160
    fault = third.open(PROMPT, max_tokens=38)
    assert (fault.request, fault.code) == (1, FaultCode.busy) and fault.retry_after_ms == 5000
    assert "41 tokens" in fault.message and "160 of 200" in fault.message
    assert third.hung_up is None and rig.service.kv.reserved == 160
    assert third.open(PROMPT, max_tokens=37, request=2).tokens and rig.service.kv.reserved == 200
    for number, leave in enumerate((
        lambda: first.say(_core.Cancel(request=1)),
        lambda: second.connection.lost(),
        lambda: third.say(_core.Close(reason="bye")),
    )):  # fmt: skip
        leave()
        assert rig.service.kv.reserved == (140, 40, 0)[number]
    assert first.take().finish == _core.Finish.cancelled
    assert first.open(PROMPT, max_tokens=1, request=2).finish == _core.Finish.length
    assert rig.service.kv.reserved == 0


def test_kv_is_given_back_behind_the_job_that_frees_it() -> None:
    for keep_kv in (0.0, 300.0):
        rig = scripted_rig(max_context=100, kv_tokens=100, keep_kv=keep_kv)
        client, other = rig.client(), rig.client()
        client.open(PROMPT, max_tokens=97)
        (running,) = client.connection._running.values()
        client.say(_core.Cancel(request=1))
        other.say(_core.Open(request=1, prompt=PROMPT, max_tokens=97))
        assert running.holding.handle is not None and other.connection._running
        rig.scheduler.step()
        assert running.holding.handle is None and not other.inbox
        rig.scheduler.run()
        assert other.inbox


def test_the_kv_of_a_service_has_a_default_and_a_least() -> None:
    assert scripted_rig(max_context=100).service.kv.capacity == 8 * 100
    assert scripted_rig(max_context=100, max_sessions=1).service.kv.capacity == 100
    with pytest.raises(UsageError, match=r"kv_tokens is 99.*max_context \(100\)"):
        scripted_rig(max_context=100, kv_tokens=99)


def test_what_is_cancelled_waits_no_longer() -> None:
    rig = scripted_rig()
    client = rig.client()
    for number in range(1, 50):
        client.say(_core.Open(request=number, prompt=PROMPT, max_tokens=5))
        (running,) = client.connection._running.values()
        client.say(_core.Cancel(request=number))
        assert running.job is not None and running.job not in rig.scheduler.queue
        assert running.job.units.gi_frame is None, "the prompt is let go"


class CountingOpen:
    """An Open that counts how often its prompt is copied."""

    request, max_tokens, free_run = 1, 5, False
    rules, stop_ids = _core.SamplingRules(), ()
    mode, logprobs = _core.Mode.coupled, -1
    grammar_kind, grammar = _core.Grammar.none, ""
    prompt_zstd, held, held_digest = b"", 0, b""

    def __init__(self) -> None:
        self.copies = 0

    @property
    def prompt(self) -> list[int]:
        self.copies += 1
        return list(PROMPT)


def test_a_prompt_is_read_once() -> None:
    message = CountingOpen()
    session = Session(Target("t", 16, bytes(32), (), 100), bytes(16), now=0.0)
    (start,) = session._open(message, 0.0)  # type: ignore[arg-type]
    assert start.prompt == PROMPT and message.copies == 1


def test_work_in_progress_is_not_idleness() -> None:
    rig = scripted_rig(idle_timeout=60)
    client = rig.client()
    session = client.connection._session
    client.say(_core.Open(request=1, prompt=PROMPT, max_tokens=9))
    for _ in range(3):
        due = session.deadline
        assert session.expire(due) == [] and session.deadline == due + 60
    rig.scheduler.run()
    assert client.next().tokens
    _, said, end = session.expire(session.deadline)
    assert "idle" in said.message.reason and end.reason == said.message.reason


def test_who_is_turned_away_hears_why() -> None:
    rig = scripted_rig(max_sessions=1)
    rig.client()
    refused = Client(rig)
    refused.say(rig.hello())
    full = refused.next()
    rig.service.close()
    closing = Client(rig).next()
    assert "1 sessions are open" in full.message and closing.message == "the cloud is shutting down"
    assert full.code == closing.code == FaultCode.busy and full.retry_after_ms == 5000
