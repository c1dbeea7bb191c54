"""A cloud that goes on by itself with what it drafts: other verdicts, the same text."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec_edge import _core
from acespec_edge.errors import UsageError
from cloud_stub.allowance import Allowance
from cloud_stub.continuation import SelfDrafting
from cloud_stub.verifiers.base import Handle
from cloud_stub.verifiers.scripted import ScriptedHandle
from tests.cloud.machine_kit import MANY
from tests.cloud.rig import Rig, hashed_logits, plain_greedy, scripted_rig
from tests.cloud.test_machine import Edges

Finish = _core.Finish
PROMPT = [1, 2, 3]
LOGITS = hashed_logits(16)
SAMPLER = _core.Sampler(16)


class Oracle:
    """Proposes what the target will say, but for the places that ``spoils`` says."""

    def __init__(self, spoils: Callable[[int], bool], longest: int = 5) -> None:
        self.longest = longest
        self.asked: list[tuple[int, int, list[int]]] = []
        self._spoils = spoils

    def propose(
        self, handle: Handle, tip: int, position: int, rules: _core.SamplingRules, count: int, least: float
    ) -> list[int]:
        assert isinstance(handle, ScriptedHandle) and handle.length == position - 1
        text = [*handle._committed, tip]
        tokens: list[int] = []
        for place in range(count):
            token = SAMPLER.choose(LOGITS([*text, *tokens]), rules, position + place)
            tokens.append((token + 1) % 16 if self._spoils(position + place) else token)
        self.asked.append((position, count, tokens))
        return tokens


def drafting_rig(oracle: Oracle, per_token: float = 16.0, **options: Any) -> Rig:
    rig = scripted_rig(**options)
    rig.service.self_drafting = SelfDrafting(oracle, per_token)
    return rig


def streamed(rig: Rig, **fields: Any) -> tuple[list[Any], list[int]]:
    """The verdicts of one free run, and the output."""
    client = rig.client()
    client.say(_core.Open(request=1, prompt=PROMPT, free_run=True, **fields))
    client.committed = list(PROMPT)
    rig.scheduler.run()
    verdicts = []
    while client.inbox:
        verdicts.append(client.take())
    return verdicts, client.committed[len(PROMPT) :]


def test_a_plain_step_commits_what_the_cloud_guessed_and_one_more() -> None:
    rig = drafting_rig(Oracle(lambda position: False))
    verdicts, output = streamed(rig, max_tokens=40)
    assert output == plain_greedy(LOGITS, PROMPT, 40)
    assert [len(verdict.tokens) for verdict in verdicts] == [1, *[6] * 6, 3]
    assert all(verdict.accepted_node == 0 and verdict.round == 0 for verdict in verdicts)
    counted = rig.service.counters.read()
    assert counted["own_nodes"] == counted["accepted_own_nodes"] == 6 * 5 + 2
    assert counted["committed_tokens"] == 40 and counted["verified_nodes"] == 0
    assert rig.scheduler.padded == [0, *[5] * 6, 2], "its own nodes take the target's time too"


@pytest.mark.parametrize("wrong_every", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "rules", [{}, {"temperature": 1.1, "seed": 4}, {"frequency_penalty": 1.5, "repetition_penalty": 1.3}]
)
def test_the_text_is_the_targets_whatever_the_cloud_guesses(wrong_every: int, rules: dict[str, Any]) -> None:
    asked = _core.SamplingRules(**rules)
    _, alone = streamed(scripted_rig(), max_tokens=60, rules=asked)
    _, output = streamed(drafting_rig(Oracle(lambda n: n % wrong_every == 0)), max_tokens=60, rules=asked)
    assert output == alone and len(alone) == 60


@pytest.mark.parametrize("most", range(1, 13))
def test_e4_no_token_more_than_asked_for(most: int) -> None:
    oracle = Oracle(lambda position: False)
    verdicts, output = streamed(drafting_rig(oracle), max_tokens=most)
    assert output == plain_greedy(LOGITS, PROMPT, most) and verdicts[-1].finish == Finish.length
    assert all(position + len(tokens) < len(PROMPT) + most for position, _, tokens in oracle.asked)


def test_e1_a_stop_id_in_a_block_ends_the_text_there() -> None:
    alone = plain_greedy(LOGITS, PROMPT, 12)
    for place, stop in enumerate(alone):
        if stop in alone[:place]:
            continue
        verdicts, output = streamed(
            drafting_rig(Oracle(lambda n: False)), max_tokens=40, stop_ids=[stop], logprobs=2
        )
        assert output == alone[: place + 1] and verdicts[-1].finish == Finish.stop
        assert sum(len(verdict.logprobs) for verdict in verdicts) == place + 1


def test_the_end_of_the_context_is_kept() -> None:
    verdicts, output = streamed(drafting_rig(Oracle(lambda n: False), max_context=20), max_tokens=99)
    assert len(output) == 17 and verdicts[-1].finish == Finish.context


def test_a_verdict_never_holds_more_than_the_protocol_lets_it() -> None:
    rig = drafting_rig(Oracle(lambda n: False, longest=9), max_nodes=4)
    verdicts, _ = streamed(rig, max_tokens=30)
    assert max(len(verdict.tokens) for verdict in verdicts) == 4


def test_log_probabilities_are_those_of_the_target_alone() -> None:
    plain, _ = streamed(scripted_rig(), max_tokens=20, logprobs=3)
    pushed, _ = streamed(drafting_rig(Oracle(lambda n: n % 4 == 0)), max_tokens=20, logprobs=3)
    reports = [
        [(r.logprob, list(r.top)) for v in verdicts for r in v.logprobs] for verdicts in (plain, pushed)
    ]
    assert reports[0] == reports[1] and len(pushed) < len(plain)


def test_a_draft_of_the_edge_is_verified_alone_and_fits_behind_what_was_pushed() -> None:
    rig = drafting_rig(Oracle(lambda position: False))
    client = rig.client()
    truth = plain_greedy(LOGITS, PROMPT, 30)
    client.say(_core.Open(request=1, prompt=PROMPT, max_tokens=30, free_run=True))
    client.committed = list(PROMPT)
    rig.scheduler.step()
    client.take()
    client.draft(1, truth[1:10], run=False)  # the block is queued already
    rig.scheduler.run()
    pushed, answer = client.take(), client.take()
    assert pushed.tokens == truth[1:7] and pushed.round == 0
    assert (answer.round, answer.accepted_node, answer.tokens) == (1, 9, truth[10:11])
    assert client.committed == PROMPT + truth[:11] and not client.inbox


def test_residual_mode_goes_on_by_the_same_choices() -> None:
    rules = _core.SamplingRules(temperature=0.9, seed=3)
    mode = _core.Mode.residual
    _, alone = streamed(scripted_rig(), max_tokens=25, rules=rules, mode=mode)
    verdicts, output = streamed(
        drafting_rig(Oracle(lambda n: n % 5 == 0)), max_tokens=25, rules=rules, mode=mode
    )
    assert output == alone and len(verdicts) < 25


def test_without_an_allowance_the_head_is_not_asked() -> None:
    oracle = Oracle(lambda position: False)
    verdicts, _ = streamed(drafting_rig(oracle, per_token=0.0), max_tokens=9)
    assert not oracle.asked and len(verdicts) == 9
    for wrong in (-1.0, 1e9, float("nan")):
        with pytest.raises(UsageError, match="per_token is"):
            SelfDrafting(oracle, wrong)


@settings(max_examples=200, deadline=None)
@given(
    st.floats(0.0, 20.0),
    st.integers(0, 9),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), max_size=200),
)
def test_never_more_nodes_than_the_tokens_pay_for(
    per_token: float, longest: int, steps: Sequence[tuple[int, int]]
) -> None:
    """Whatever is accepted, and however many of the nodes allowed are used."""
    allowance = Allowance(per_token, longest)
    nodes = tokens = 0
    for room, right in steps:
        count = min(room, allowance.nodes())
        assert 0 <= count <= longest
        accepted = min(right, count)
        nodes, tokens = nodes + count, tokens + accepted + 1
        allowance.spent(count, accepted, accepted + 1)
        assert nodes <= longest + per_token * tokens


def test_a_head_of_no_use_is_hardly_asked_but_now_and_then() -> None:
    allowance = Allowance(4.0, 7)
    tried = []
    for _ in range(1000):
        count = allowance.nodes()
        tried.append(count)
        allowance.spent(count, 0, 1)
    assert tried[0] > 2 and sum(tried) / len(tried) < 0.1 and any(tried[500:])


def test_a_good_head_is_given_whole_blocks_and_a_fair_one_shorter_ones() -> None:
    rng = random.Random(1)
    for share, least, most in ((0.97, 6.5, 7), (0.5, 1, 2.5)):
        allowance, tried = Allowance(4.0, 7), []
        for _ in range(400):
            count = allowance.nodes()
            accepted = next((place for place in range(count) if rng.random() > share), count)
            tried.append(count)
            allowance.spent(count, accepted, accepted + 1)
        assert least <= sum(tried[200:]) / 200 <= most


class PushedEdges(Edges):
    """The machine of drafts and free runs, over a cloud that drafts for itself; its blocks are partly
    wrong.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rig.service.self_drafting = SelfDrafting(Oracle(lambda n: n * n % 7 == 4, longest=4), 8.0)


TestPushedEdges = PushedEdges.TestCase
TestPushedEdges.settings = settings(MANY, max_examples=120)
