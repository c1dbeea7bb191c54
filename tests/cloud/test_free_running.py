"""The server's role where no draft is answered: cancelling, leaving, running freely."""

from __future__ import annotations

from acespec_edge import _core
from tests.cloud.rig import hashed_logits, plain_greedy, scripted_rig

Finish, FaultCode = _core.Finish, _core.FaultCode
PROMPT = [1, 2, 3]
LOGITS = hashed_logits(16)


def test_cancel_answers_at_once_and_frees_the_slot() -> None:
    client = scripted_rig().client()
    client.open(PROMPT)
    client.draft(1, [1, 2], run=False)
    client.say(_core.Cancel(request=1))
    verdict = client.take()
    assert (verdict.finish, verdict.tokens, verdict.base) == (Finish.cancelled, [], 4)
    client.rig.scheduler.run()
    assert not client.inbox, "the cancelled work says nothing"
    assert client.open(PROMPT, request=2).request == 2


def test_cancel_stops_a_long_prefill_between_chunks() -> None:
    client = scripted_rig(prefill_chunk=4).client()
    client.say(_core.Open(request=1, prompt=[1] * 100, max_tokens=3))
    client.rig.scheduler.step()
    client.say(_core.Cancel(request=1))
    assert client.next().finish == Finish.cancelled
    client.rig.scheduler.run(limit=3)


def test_a_long_prompt_leaves_others_their_turns() -> None:
    rig = scripted_rig(prefill_chunk=4)
    long, short = rig.client(), rig.client()
    long.say(_core.Open(request=1, prompt=[1] * 41, max_tokens=3))
    short.say(_core.Open(request=1, prompt=[1], max_tokens=3))
    rig.scheduler.step()
    rig.scheduler.step()
    assert short.inbox and not long.inbox
    rig.scheduler.run()
    assert long.next().tokens == plain_greedy(LOGITS, [1] * 41, 1)


def test_free_run_streams_until_the_end() -> None:
    client = scripted_rig().client()
    client.open(PROMPT, max_tokens=9, free_run=True)
    verdicts = []
    while client.inbox:
        verdicts.append(client.take())
    assert client.committed == PROMPT + plain_greedy(LOGITS, PROMPT, 9)
    assert [v.round for v in verdicts] == [0] * 8 and verdicts[-1].finish == Finish.length


def test_a_draft_ends_a_free_run_and_a_free_running_draft_starts_one() -> None:
    rig = scripted_rig()
    client = rig.client()
    expected = plain_greedy(LOGITS, PROMPT, 30)
    client.say(_core.Open(request=1, prompt=PROMPT, max_tokens=30, free_run=True))
    client.committed = list(PROMPT)
    for _ in range(3):
        rig.scheduler.step()
    for _ in range(3):
        client.take()
    client.draft(1, expected[3:7], run=False)  # the fourth step is already queued
    rig.scheduler.run()
    step, answer = client.take(), client.take()
    assert (step.round, step.tokens) == (0, expected[3:4])
    assert (answer.round, answer.accepted_node, answer.tokens) == (1, 4, expected[7:8])
    assert not client.inbox
    client.draft(2, expected[8:10], run=False, free_run=True)
    for _ in range(3):
        rig.scheduler.step()
    rounds = [client.take().round for _ in range(3)]
    assert rounds == [2, 2, 2] and client.committed == PROMPT + expected[:13]
    client.say(_core.Cancel(request=1))
    assert client.take().finish == Finish.cancelled


def test_a_draft_that_no_longer_fits_still_ends_a_free_run() -> None:
    rig = scripted_rig()
    client = rig.client()
    client.say(_core.Open(request=1, prompt=PROMPT, max_tokens=30, free_run=True))
    client.committed = list(PROMPT)
    rig.scheduler.step()
    client.draft(1, [(plain_greedy(LOGITS, PROMPT, 1)[0] + 1) % 16], base=3)
    assert len(client.committed) == 4
    client.take()
    assert not client.inbox and len(client.committed) == 5
    client.say(_core.Cancel(request=1))
    assert client.take().round == 0, "a verdict that answers no draft repeats the last answered round"


def test_closing_and_losing_free_the_work() -> None:
    rig = scripted_rig()
    for leave in (
        lambda client: client.say(_core.Close(reason="bye")),
        lambda client: client.connection.lost(),
        lambda client: client.connection.close("shutting down"),
    ):
        client = rig.client()
        client.open(PROMPT)
        client.draft(1, [1, 2, 3], run=False)
        leave(client)
        rig.scheduler.run()
        assert not [m for m in client.inbox if isinstance(m, _core.Verdict)]
        assert client.connection._running == {}
