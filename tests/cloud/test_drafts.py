"""The server's role with drafts out of step: early, late, twice, several at once, one below another."""

from __future__ import annotations

from acespec_edge import _core
from tests.cloud.rig import expect_fault, hashed_logits, plain_greedy, scripted_rig

Finish, FaultCode = _core.Finish, _core.FaultCode
PROMPT = [1, 2, 3]
LOGITS = hashed_logits(16)


def test_w3_a_duplicate_changes_nothing_and_an_old_round_is_ignored() -> None:
    client = scripted_rig().client()
    expected = plain_greedy(LOGITS, PROMPT, 12)
    client.open(PROMPT)
    client.draft(5, expected[1:3])
    assert client.draft(5, expected[3:5], base=4) is None
    assert client.draft(4, expected[4:6]) is None
    assert client.draft(6, expected[4:5]).round == 6
    assert client.committed == PROMPT + expected[:6]


def test_a_draft_on_an_old_base_is_used_where_it_fits_and_dropped_where_not() -> None:
    rig = scripted_rig()
    client = rig.client()
    expected = plain_greedy(LOGITS, PROMPT, 12)
    client.open(PROMPT)
    client.draft(1, expected[1:4], run=False, first_node=10)
    client.draft(2, [(expected[1] + 1) % 16], run=False, first_node=20)
    client.draft(3, expected[1:7], run=False, first_node=30)
    rig.scheduler.run()
    verdict, used = client.take(), client.take()
    assert (verdict.round, verdict.base, verdict.accepted_node) == (1, 4, 12)
    assert (used.round, used.base, used.accepted_node, used.tokens) == (3, 8, 35, expected[7:8])
    assert not client.inbox and client.committed == PROMPT + expected[:8]
    assert rig.service.counters.read()["dropped_drafts"] == 1


def test_a_draft_rooted_outside_the_output_is_a_breach() -> None:
    for base in (2, 5):
        client = scripted_rig().client()
        client.open(PROMPT)
        client.say(_core.Draft(request=1, round=1, base=base, tokens=[1]))
        expect_fault(client, FaultCode.protocol, f"Draft.base is {base}", "3 to 4", ends=True)


def test_drafts_for_another_request_and_after_the_end_are_ignored() -> None:
    client = scripted_rig().client()
    client.open(PROMPT)
    assert client.draft(1, [1], request=9) is None
    client.say(_core.Cancel(request=1))
    assert client.take().finish == Finish.cancelled
    assert client.draft(2, [1]) is None
    client.say(_core.Cancel(request=1))
    assert not client.inbox and client.hung_up is None


def test_too_many_waiting_drafts_are_a_breach() -> None:
    client = scripted_rig().client()
    client.say(_core.Open(request=1, prompt=PROMPT, max_tokens=12))
    for round in range(1, 66):
        client.send(round, [1], base=3)
    expect_fault(client, FaultCode.protocol, "more than 64 drafts", ends=True)
