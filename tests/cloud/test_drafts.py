"""The server's role with drafts out of step: early, late, twice, several at once, one below another."""

from __future__ import annotations

from acespec_edge import _core
from cloud_stub.actions import Verify
from cloud_stub.judge import Ruling
from cloud_stub.session import Session
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


def other(token: int) -> int:
    """A token that is wrong where ``token`` is right."""
    return (token + 1) % 16


def test_a_node_number_is_used_once() -> None:
    client = scripted_rig().client()
    client.open(PROMPT)
    client.draft(1, [1, 2], first_node=5, run=False)
    client.send(2, [], first_node=1)
    client.send(3, [3], first_node=6)
    expect_fault(client, FaultCode.protocol, "Draft.first_node is 6", "before 7", ends=True)


def test_more_nodes_than_may_wait_are_a_breach() -> None:
    rig = scripted_rig(max_nodes=5)
    client = rig.client()
    expected = plain_greedy(LOGITS, PROMPT, 4)
    client.open(PROMPT)
    client.draft(1, expected[1:4], run=False)
    client.send(2, [7, 8], base=4)
    client.send(3, expected[1:3], base=4)
    assert not client.inbox, "what repeats other nodes takes no room"
    client.send(4, [9], base=4)
    expect_fault(client, FaultCode.protocol, "6 nodes wait", "at most 5", ends=True)


def test_a_delta_below_what_is_verified_needs_no_new_round_trip() -> None:
    """The accepted path is not the first nodes of the tree, and the delta hangs below its last."""
    rig = scripted_rig()
    client = rig.client()
    expected = plain_greedy(LOGITS, PROMPT, 12)
    client.open(PROMPT)
    tree = [other(expected[1]), expected[1], other(expected[2]), expected[2]]
    client.draft(1, tree, parent_offsets=[0, 0, 2, 2], run=False)
    # 5 and 6 below node 4, 7 below the wrong node 1; 6 is what the target puts there.
    client.draft(2, [other(expected[3]), expected[3], expected[2]], parent_offsets=[1, 2, 6], run=False)
    client.draft(3, [expected[4], expected[5]], parent_offsets=[2, 1], run=False)
    rig.scheduler.step()
    first = client.take()
    assert (first.round, first.accepted_node, first.tokens) == (1, 4, expected[3:4])
    rig.scheduler.run()
    second = client.take()
    assert (second.round, second.base, second.accepted_node) == (3, 7, 9)
    assert second.tokens == expected[6:7] and client.committed == PROMPT + expected[:7]
    assert rig.scheduler.padded[-2:] == [4, 2] and not client.inbox


def test_all_that_waits_is_verified_in_one_forward() -> None:
    rig = scripted_rig()
    client = rig.client()
    expected = plain_greedy(LOGITS, PROMPT, 12)
    client.say(_core.Open(request=1, prompt=PROMPT, max_tokens=30))
    client.committed = list(PROMPT)
    client.draft(1, [other(expected[0]), expected[0]], parent_offsets=[0, 0], run=False)
    client.draft(2, expected[:3], run=False)
    client.draft(3, [expected[3], other(expected[3])], parent_offsets=[1, 2], run=False)
    rig.scheduler.run()
    assert client.take().round == 0
    verdict = client.take()
    assert (verdict.round, verdict.base, verdict.accepted_node) == (3, 4, 6)
    assert verdict.tokens == expected[4:5] and rig.scheduler.padded[-1] == 4, "node 3 is another name of 2"
    assert not client.inbox


def test_a_delta_below_what_was_rejected_is_dropped_with_it() -> None:
    rig = scripted_rig()
    client = rig.client()
    expected = plain_greedy(LOGITS, PROMPT, 12)
    client.open(PROMPT)
    client.draft(1, [other(expected[1])], run=False)
    client.draft(2, [expected[2]], parent_offsets=[1], run=False)
    rig.scheduler.run()
    assert client.take().round == 1 and not client.inbox
    assert client.draft(3, [expected[2], 1], parent_offsets=[1, 0]).round == 3
    assert rig.scheduler.padded[-1] == 1, "below a node that is gone nothing hangs"
    assert rig.service.counters.read()["dropped_drafts"] == 1


def test_what_was_committed_meanwhile_is_walked_from_any_node() -> None:
    """A parent that has been committed since is where its children are compared from."""
    client = scripted_rig().client()
    expected = plain_greedy(LOGITS, PROMPT, 12)
    client.open(PROMPT)
    client.draft(1, expected[1:2])
    assert client.committed == PROMPT + expected[:3]
    verdict = client.draft(2, [expected[2], expected[3], 0], parent_offsets=[1, 1, 3])
    assert (verdict.round, verdict.accepted_node, verdict.tokens) == (2, 3, expected[4:5])
    assert client.rig.scheduler.padded[-1] == (2 if expected[2] == 0 else 1)


def test_a_plain_step_is_taken_only_where_nothing_else_waits() -> None:
    rig = scripted_rig()
    client = rig.client()
    expected = plain_greedy(LOGITS, PROMPT, 12)
    client.open(PROMPT)
    client.draft(1, [], run=False)
    client.draft(2, [], run=False)
    rig.scheduler.run()
    step = client.take()
    assert (step.round, step.tokens) == (1, expected[1:2])
    assert not client.inbox, "the second asked for the same"
    client.draft(3, [], run=False)
    client.draft(4, expected[3:5], base=5, run=False)
    client.draft(5, expected[2:4], base=5, run=False)
    client.draft(6, [], base=5, run=False)
    rig.scheduler.run()
    assert (client.take().round, client.take().round) == (3, 6) and not client.inbox
    assert rig.service.counters.read()["dropped_drafts"] == 3, "2, 4 and 6"


def test_a_free_run_that_drops_a_draft_says_that_it_has_come() -> None:
    rig = scripted_rig()
    client = rig.client()
    expected = plain_greedy(LOGITS, PROMPT, 12)
    client.open(PROMPT)
    client.draft(1, [other(expected[1])], run=False)
    client.draft(2, [4], parent_offsets=[1], free_run=True, run=False)
    for _ in range(3):
        rig.scheduler.step()
    assert [client.take().round for _ in range(3)] == [1, 2, 2]
    assert client.committed == PROMPT + expected[:4]


def test_the_queue_is_counted_from_the_newest_draft() -> None:
    target = scripted_rig().service.target
    session = Session(target, b"0123456789abcdef", 0.0)
    session.receive(_core.Hello(tokenizer=target.fingerprint), 0.0)
    [start] = session.receive(_core.Open(request=1, prompt=PROMPT, max_tokens=9), 1.0)
    for round, now in ((1, 2.0), (2, 3.0)):
        draft = _core.Draft(request=1, round=round, base=3, first_node=round, tokens=[5], free_run=True)
        assert session.receive(draft, now) == []
    answer = Ruling([], 5, Finish.none)
    [_, verify] = session.ruled(start.ticket, answer, 0, 0, 4.0)
    assert isinstance(verify, Verify) and verify.arrived == 3.0, "both drafts are used up; it runs freely"
    [_, verify] = session.ruled(start.ticket, answer, 0, 0, 5.0)
    assert verify.arrived == 5.0, "this one answers no draft"
