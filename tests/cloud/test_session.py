"""The server's role, one request at a time: what can be served, what comes out, where it ends."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from acespec_edge import _core
from acespec_edge.protocol import ROOT
from cloud_stub.verifiers.base import Rows
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.cloud.rig import Rig, expect_fault, hashed_logits, plain_greedy, scripted_rig, tiny_vocabulary

Finish, FaultCode = _core.Finish, _core.FaultCode
PROMPT = [1, 2, 3]
LOGITS = hashed_logits(16)


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
