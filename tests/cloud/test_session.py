"""The server's role, message by message, over a scripted target."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from acespec_edge import _core
from acespec_edge.protocol import ROOT
from cloud_stub.session import Session
from cloud_stub.target import Target
from cloud_stub.verifiers.base import Rows
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.cloud.rig import Client, Rig, hashed_logits, plain_greedy, scripted_rig, tiny_vocabulary

Finish, FaultCode = _core.Finish, _core.FaultCode
PROMPT = [1, 2, 3]
LOGITS = hashed_logits(16)


def expect_fault(client: Client, code: _core.FaultCode, *words: str, ends: bool) -> None:
    fault = client.next()
    assert isinstance(fault, _core.Fault), fault
    assert fault.code == code
    for word in words:
        assert word in fault.message
    assert (client.hung_up is not None) == ends


# Handshake.


def test_hello_is_answered_with_what_the_target_is() -> None:
    rig = scripted_rig(max_context=77, max_nodes=9)
    client = rig.client(greet=False)
    client.say(rig.hello())
    welcome = client.next()
    assert (welcome.vocabulary, welcome.max_context, welcome.max_nodes) == (16, 77, 9)
    assert welcome.target == "scripted" and len(welcome.session) == 16


def test_v1_padded_logits_are_the_same_tokenizer() -> None:
    def logits_of(tokens: Sequence[int]) -> Rows:
        row = np.full(24, 50.0, dtype=np.float32)
        row[:16] = LOGITS(tokens)
        return row

    rig = Rig(ScriptedVerifier(logits_of, tiny_vocabulary(), logits_width=24))
    client = rig.client()
    expected = plain_greedy(LOGITS, PROMPT, 3)
    assert client.open(PROMPT).tokens == expected[:1]
    assert client.draft(1, expected[1:2]).tokens == expected[2:3]
    client.say(_core.Draft(request=1, round=2, base=6, tokens=[16]))
    expect_fault(client, FaultCode.request, "Draft.tokens[0] is 16", "0 to 15", ends=False)


def test_v2_another_tokenizer_of_the_same_size_is_refused() -> None:
    rig = scripted_rig(16)
    client = rig.client(greet=False)
    other = tiny_vocabulary(16, swap=True)
    client.say(rig.hello(tokenizer=other.fingerprint, chunks=other.chunks))
    expect_fault(client, FaultCode.tokenizer, "tiny has 16", "scripted has 16", "ids 0 to 15", ends=True)


def test_v2_a_longer_tokenizer_is_refused_and_the_difference_found() -> None:
    rig = scripted_rig(16)
    client = rig.client(greet=False)
    other = tiny_vocabulary(20)
    client.say(rig.hello(tokenizer=other.fingerprint, vocabulary=20, chunks=rig.service.target.chunks))
    expect_fault(client, FaultCode.tokenizer, "tiny has 20", "ids from 16 on", ends=True)


def test_another_protocol_version_is_refused() -> None:
    rig = scripted_rig()
    client = rig.client(greet=False)
    client.say(rig.hello(version=_core.PROTOCOL_VERSION + 1))
    expect_fault(client, FaultCode.version, str(_core.PROTOCOL_VERSION + 1), ends=True)


@pytest.mark.parametrize(
    "message", [_core.Open(request=1, prompt=[1], max_tokens=1), _core.Cancel(request=1), _core.Welcome()]
)
def test_anything_but_hello_first_is_a_breach(message: object) -> None:
    client = scripted_rig().client(greet=False)
    client.say(message)
    expect_fault(client, FaultCode.protocol, type(message).__name__, "Hello", ends=True)


def test_a_second_hello_is_a_breach() -> None:
    rig = scripted_rig()
    client = rig.client()
    client.say(rig.hello())
    expect_fault(client, FaultCode.protocol, "Hello is out of place", ends=True)


def test_garbage_ends_the_session_and_only_it() -> None:
    rig = scripted_rig()
    bad, good = rig.client(), rig.client()
    bad.connection.receive(b"\x00\xff nonsense")
    expect_fault(bad, FaultCode.protocol, ends=True)
    assert good.open(PROMPT).tokens == plain_greedy(LOGITS, PROMPT, 1)


def test_one_session_too_many_is_told_when_to_come_back() -> None:
    rig = scripted_rig(max_sessions=1)
    first = rig.client()
    second = rig.client(greet=False)
    fault = second.next()
    assert fault.code == FaultCode.busy and fault.retry_after_ms > 0 and second.hung_up
    first.connection.lost()
    assert rig.client().hung_up is None


def test_deadlines_for_hello_and_for_silence() -> None:
    target = Target("t", 16, bytes(32), (), 100, handshake_timeout=10, idle_timeout=60)
    silent = Session(target, bytes(16), now=100.0)
    assert silent.expire(109.9) == [] and silent.deadline == 110.0
    fault, end = silent.expire(110.0)
    assert "no Hello within 10 s" in fault.message.message and end.reason
    session = Session(target, bytes(16), now=0.0)
    session.receive(_core.Hello(tokenizer=bytes(32), vocabulary=16), 5.0)
    assert session.deadline == 65.0 and session.expire(64.0) == []
    assert isinstance(session.expire(65.0)[0].message, _core.Close)
    assert session.receive(_core.Hello(), 66.0) == []


# Requests.


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": []}, ("Open.prompt is empty",)),
        ({"prompt": [0] * 32}, ("32 tokens", "holds 32", "at most 31")),
        ({"prompt": [3, 16]}, ("Open.prompt[1] is 16", "0 to 15")),
        ({"max_tokens": 0}, ("Open.max_tokens is 0",)),
    ],
)
def test_c3_what_cannot_be_served_is_named_and_the_session_lives(
    fields: dict, words: tuple[str, ...]
) -> None:
    client = scripted_rig(max_context=32).client()
    client.say(_core.Open(**({"request": 7, "prompt": PROMPT, "max_tokens": 5} | fields)))
    assert client.inbox[0].request == 7
    expect_fault(client, FaultCode.request, *words, ends=False)
    assert client.open(PROMPT, request=8).request == 8


def test_open_is_round_zero() -> None:
    client = scripted_rig().client()
    verdict = client.open(PROMPT)
    assert (verdict.round, verdict.base, verdict.accepted_node) == (0, 3, 0)
    assert verdict.tokens == plain_greedy(LOGITS, PROMPT, 1)


def test_a_second_open_while_one_runs_is_refused_and_the_first_goes_on() -> None:
    client = scripted_rig().client()
    client.open(PROMPT)
    client.say(_core.Open(request=2, prompt=[5], max_tokens=5))
    assert client.inbox[0].request == 2
    expect_fault(client, FaultCode.request, "request 1 is still running", ends=False)
    assert client.draft(1, []).request == 1


def random_tree(rng: random.Random, truth: Sequence[int], nodes: int, vocabulary: int) -> tuple[list, list]:
    """A tree that holds part of the truth and much else."""
    parents, tokens = [], []
    for node in range(nodes):
        parent = rng.randrange(-1, node) if node else ROOT
        depth = 0
        above = parent
        while above != ROOT:
            depth, above = depth + 1, parents[above]
        taken = {tokens[k] for k in range(node) if parents[k] == parent}
        token = truth[depth] if depth < len(truth) and rng.random() < 0.6 else rng.randrange(vocabulary)
        if token in taken:
            token = next(t for t in range(vocabulary) if t not in taken)
        parents.append(parent)
        tokens.append(token)
    return tokens, parents


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_any_drafts_give_the_targets_own_tokens(temperature: float) -> None:
    rules = _core.SamplingRules(temperature=temperature, seed=11)
    sampler = _core.Sampler(16)
    truth = list(PROMPT)
    for _ in range(40):
        truth.append(sampler.choose(LOGITS(truth), rules, len(truth)))
    for seed in range(6):
        rng = random.Random(seed)
        client = scripted_rig().client()
        client.open(PROMPT, max_tokens=37, rules=rules)
        round, first_node, last = 0, 1, None
        while last is None or last.finish == Finish.none:
            round += 1
            length = len(client.committed)
            tokens, parents = random_tree(rng, truth[length : length + 6], rng.randrange(9), 16)
            offsets = [0 if parent == ROOT else node - parent for node, parent in enumerate(parents)]
            fields = {"parent_offsets": offsets, "first_node": first_node}
            last = client.draft(round, tokens, **fields)
            first_node += len(tokens)
        assert last.finish == Finish.length
        assert client.committed == truth[:40], f"seed {seed}"


@pytest.mark.parametrize("place", range(6))
def test_e1_a_stop_id_ends_at_every_place_of_a_block(place: int) -> None:
    truth = [10, 11, 12, 13, 14, 15, 1]
    client = chain_rig(truth).client()
    client.open([0], stop_ids=[truth[place]])
    verdict = None
    if place:
        verdict = client.draft(1, truth[1:6])
        assert verdict.finish == Finish.stop and verdict.tokens == [truth[place]]
        assert verdict.accepted_node == place - 1
    assert client.committed == [0, *truth[: place + 1]]
    assert client.draft(2, truth[place + 1 : place + 2]) is None
    assert client.rig.service.counters.read()["committed_tokens"] == place + 1


def chain_rig(truth: Sequence[int], **options: int) -> Rig:
    """A target that says ``truth`` after any prompt of one token."""

    def logits_of(tokens: Sequence[int]) -> Rows:
        row = np.zeros(32, dtype=np.float32)
        row[truth[(len(tokens) - 1) % len(truth)]] = 9.0
        return row

    context = options.pop("max_context", 4096)
    return Rig(ScriptedVerifier(logits_of, tiny_vocabulary(32), max_context=context), **options)


@pytest.mark.parametrize(
    ("cap", "finish", "count"), [(5, Finish.stop, 3), (2, Finish.length, 2), (3, Finish.stop, 3)]
)
def test_e2_stop_goes_before_length(cap: int, finish: _core.Finish, count: int) -> None:
    block = [10, 11, 30, 20, 21, 22]
    client = chain_rig(block).client()
    client.open([0], max_tokens=cap, stop_ids=[30])
    assert client.draft(1, block[1:]).finish == finish
    assert client.committed == [0, *block[:count]]


@pytest.mark.parametrize("cap", range(1, 13))
@pytest.mark.parametrize("length", [0, 1, 4, 12])
def test_e4_max_tokens_is_exact(cap: int, length: int) -> None:
    client = scripted_rig().client()
    expected = plain_greedy(LOGITS, PROMPT, 32)
    verdict = client.open(PROMPT, max_tokens=cap)
    round = 0
    while verdict.finish == Finish.none:
        round += 1
        done = len(client.committed) - 3
        verdict = client.draft(round, expected[done : done + length])
    assert verdict.finish == Finish.length
    assert client.committed == PROMPT + expected[:cap]


@pytest.mark.parametrize("context", range(4, 12))
def test_c1_the_last_token_of_the_context_is_produced(context: int) -> None:
    client = scripted_rig(max_context=context).client()
    expected = plain_greedy(LOGITS, PROMPT, 16)
    verdict = client.open(PROMPT)
    round = 0
    while verdict.finish == Finish.none:
        round += 1
        done = len(client.committed) - 3
        verdict = client.draft(round, expected[done : done + 5])
        room = context - 3 - done - 1
        assert client.rig.scheduler.padded[-1] == min(5, room), (
            "nodes that cannot be committed are not verified"
        )
    assert verdict.finish == Finish.context
    assert client.committed == (PROMPT + expected)[:context]


def test_v3_a_token_beyond_the_vocabulary_ends_the_request_and_nothing_else() -> None:
    client = scripted_rig().client()
    client.open(PROMPT)
    client.say(_core.Draft(request=1, round=1, base=4, tokens=[3, 999]))
    expect_fault(client, FaultCode.request, "Draft.tokens[1] is 999", "0 to 15", ends=False)
    assert client.open(PROMPT, request=2).tokens


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_n1_logits_that_cannot_be_drawn_from_name_the_position(bad: float) -> None:
    def logits_of(tokens: Sequence[int]) -> Rows:
        return np.full(16, bad, dtype=np.float32) if len(tokens) == 5 else LOGITS(tokens)

    client = Rig(ScriptedVerifier(logits_of, tiny_vocabulary())).client()
    expected = plain_greedy(LOGITS, PROMPT, 2)
    client.open(PROMPT)
    client.say(_core.Draft(request=1, round=1, base=4, tokens=expected[1:]))
    client.rig.scheduler.run()
    expect_fault(client, FaultCode.internal, "at position 5", ends=False)
    assert client.open([1], request=2, max_tokens=1).finish == Finish.length


def test_k2_three_sessions_advance_by_their_own_counts() -> None:
    rig = scripted_rig()
    clients = [rig.client() for _ in range(3)]
    prompts = [[1, 2], [3, 4, 5], [6]]
    truths = [plain_greedy(LOGITS, prompt, 40) for prompt in prompts]
    for client, prompt in zip(clients, prompts, strict=True):
        client.open(prompt)
    for round in range(1, 7):
        for turn, (client, prompt, truth) in enumerate(zip(clients, prompts, truths, strict=True)):
            done = len(client.committed) - len(prompt)
            right = (0, 2, 4)[(turn + round) % 3]
            chain = truth[done : done + right] + [(truth[done + right] + 1) % 16] * (4 - right)
            client.draft(round, chain, run=False)
        rig.scheduler.run()
        for turn, client in enumerate(clients):
            before = len(client.committed)
            client.take()
            assert len(client.committed) - before == 1 + (0, 2, 4)[(turn + round) % 3]
    for client, prompt, truth in zip(clients, prompts, truths, strict=True):
        assert client.committed == prompt + truth[: len(client.committed) - len(prompt)]


# Drafts out of step.


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


# Cancelling and free running.


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
