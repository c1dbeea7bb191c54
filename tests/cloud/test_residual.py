"""Residual mode end to end over the wire: the native drafter, both sessions, the judge, in one thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from acespec_edge import _core
from acespec_edge.errors import UsageError
from acespec_edge.session import EdgeSession
from acespec_edge.session_events import Committed
from cloud_stub.rejection import Rejection
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.cloud.rig import Client, Rig, tiny_vocabulary
from tools.bench.lossless.chi_square import p_value
from tools.bench.lossless.enumeration import enumerate_outputs

SIZE = 16
PROMPT = [3, 9, 3]
DRAWS = 8_000
ALARM = 1e-8
"""A correct system fails one of the tests here with a chance under one in a million."""

RESIDUAL = _core.Mode.residual
TARGET = _core.FakeEngine(SIZE, 128, seed=1, sharpness=1.0)
_KNOWN: dict[tuple[int, ...], Any] = {}


def target(tokens: Sequence[int]) -> Any:
    key = tuple(tokens)
    if key not in _KNOWN:
        _KNOWN[key] = TARGET.logits(key)
    return _KNOWN[key]


class Pair:
    """An edge and a cloud; ``more`` counts the requests for more tail samples."""

    def __init__(self, *, disagreement: float = 0.5, max_context: int = 64) -> None:
        self.rig = Rig(ScriptedVerifier(target, tiny_vocabulary(SIZE), max_context=max_context))
        engine = _core.FakeEngine(SIZE, 128, seed=1, sharpness=1.0, disagreement=disagreement)
        self.drafter = _core.Drafter(engine, _core.DrafterOptions(context=64))
        self._down: deque[bytes] = deque()
        self._cloud = self.rig.service.connect(self._down.append, lambda reason: None)
        told = self.rig.service.target
        self.session = EdgeSession(tokenizer=told.fingerprint, vocabulary=SIZE, drafter="native")
        self.ask(self.session.hello())
        self.more = 0
        self.reports: list[_core.TokenLogprob] = []

    def ask(self, frame: bytes) -> Any:
        self._cloud.receive(frame)
        self.rig.scheduler.run()
        return self.session.receive(self._down.popleft(), 0.0)

    def play(
        self,
        rules: _core.SamplingRules,
        tokens: int,
        *,
        length: int = 2,
        stop_ids: Sequence[int] = (),
        drafter_rules: _core.SamplingRules | None = None,
        logprobs: int = -1,
    ) -> tuple[list[int], _core.Finish]:
        self.drafter.begin(PROMPT, drafter_rules or rules, stop_ids, True)
        event: Committed = self.ask(
            self.session.open(
                PROMPT, rules, stop_ids=stop_ids, max_tokens=tokens, at=0.0, mode=RESIDUAL, logprobs=logprobs
            )
        )
        output: list[int] = []
        self.reports = []
        while True:
            self.reports += event.logprobs
            output += event.tokens
            if event.finish != _core.Finish.none:
                return output, event.finish
            drawn = self._drawn(event)
            output += drawn
            self.drafter.apply_verdict(event.tokens + drawn)
            while self.drafter.ready < length and not self.drafter.step(1, True).exhausted:
                pass
            chain = self.drafter.take_chain(length).tokens
            weights = self.drafter.chain_weights
            event = self.ask(
                self.session.draft(chain, at=0.0, weights=weights, resampled=drawn[0] if drawn else None)
            )

    def _drawn(self, event: Committed) -> list[int]:
        if event.sparse is None:
            return []
        row = event.sparse
        while (token := self.drafter.resample(len(event.tokens), row)) is None:
            self.more += 1
            answer = self.ask(self.session.more_samples(at=0.0))
            assert answer.tokens == [] and answer.sparse.head == row.head
            row = _core.SparseRow(
                head=row.head, tail_mass=row.tail_mass, tail=[*row.tail, *answer.sparse.tail]
            )
        return [token]


def counted(pair: Pair, draws: int, rules: dict[str, Any], tokens: int = 3, **options: Any) -> Any:
    counts = np.zeros((SIZE + 1,) * tokens, np.int64)
    for seed in range(draws):
        output, _ = pair.play(_core.SamplingRules(seed=seed, **rules), tokens, length=1 + seed % 3, **options)
        counts[tuple([*output, *[SIZE] * (tokens - len(output))])] += 1
    return counts


def likelihood(counts: Any, rules: dict[str, Any], stop_ids: Sequence[int] = ()) -> float:
    """Of the last two tokens together, the first being the target's own."""
    expected = enumerate_outputs(
        target, PROMPT, _core.SamplingRules(**rules), size=SIZE, length=counts.ndim, stop_ids=stop_ids
    )
    return p_value(counts.sum(axis=0), expected.sum(axis=0))


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(
    ("rules", "stop_ids"),
    [
        ({"temperature": 1.0}, ()),
        ({"temperature": 0.9, "top_p": 0.9, "top_k": 9}, ()),
        ({"temperature": 1.0, "frequency_penalty": 2.0, "min_tokens": 2, "banned": [1]}, (4, 7, 10)),
    ],
)
def test_residual_output_has_the_targets_distribution(
    rules: dict[str, Any], stop_ids: Sequence[int], small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``small``: heads of two tokens and a sample a message, so that most draws are of the tail."""
    if small:
        monkeypatch.setattr("cloud_stub.rejection._HEAD", 2)
        monkeypatch.setattr("cloud_stub.rejection._SAMPLES", 1)
    pair = Pair()
    counts = counted(pair, DRAWS // (2 if small else 1), rules, stop_ids=stop_ids)
    assert likelihood(counts, rules, stop_ids) > ALARM
    assert (pair.more > 100) == small


def test_s1_another_q_than_the_drafted_one_is_caught() -> None:
    """The control: a drafter that draws by other odds than it names."""
    pair = Pair()

    class Lying(_core.Drafter):
        @property
        def chain_weights(self) -> list[int]:
            return [min(65535, 4 * weight) for weight in super().chain_weights]

    pair.drafter = Lying(
        _core.FakeEngine(SIZE, 128, seed=1, sharpness=1.0, disagreement=0.5), _core.DrafterOptions(context=64)
    )
    rules = {"temperature": 1.0}
    assert likelihood(counted(pair, DRAWS, rules), rules) < ALARM


def test_s1_two_tokens_keep_the_targets_odds() -> None:
    odds = {"temperature": 1.0, "allowed": [0, 1]}
    flat = {token: -float(target(PROMPT)[token]) for token in (0, 1)}
    asked = [(0, flat[0] + float(np.log(0.6))), (1, flat[1] + float(np.log(0.4)))]
    pair = Pair(disagreement=0.0)
    ones = 0
    for seed in range(4_000):
        rules = _core.SamplingRules(seed=seed, logit_bias=asked, **odds)
        skewed = _core.SamplingRules(
            seed=seed,
            logit_bias=[(0, flat[0] + float(np.log(0.8))), (1, flat[1] + float(np.log(0.2)))],
            **odds,
        )
        output, _ = pair.play(rules, 1 + 1, drafter_rules=skewed)
        ones += output[0] == 0
    assert ones / 4_000 == pytest.approx(0.6, abs=0.04)


def test_s2_greedy_drafts_are_one_hot_and_exact() -> None:
    pair = Pair()
    rules = _core.SamplingRules()
    alone, tokens = [], list(PROMPT)
    for _ in range(40):
        tokens.append(int(np.argmax(target(tokens))))
    alone = tokens[len(PROMPT) :]
    for length in range(5):
        assert pair.play(rules, 40, length=length) == (alone, _core.Finish.length)


@pytest.mark.parametrize("count", range(1, 13))
def test_e4_exactly_max_tokens_whoever_draws_the_last(count: int) -> None:
    pair = Pair(disagreement=1.0)
    for seed in range(20):
        rules = _core.SamplingRules(temperature=1.0, seed=seed)
        output, finish = pair.play(rules, count, length=3)
        assert len(output) == count and finish == _core.Finish.length


def test_e1_stop_ids_end_it_whoever_draws_them() -> None:
    pair = Pair(disagreement=1.0)
    ends = set()
    for seed in range(200):
        output, finish = pair.play(
            _core.SamplingRules(temperature=1.0, seed=seed), 20, length=3, stop_ids=[2, 5, 11]
        )
        assert (output[-1] in (2, 5, 11)) == (finish == _core.Finish.stop)
        assert not set(output[:-1]) & {2, 5, 11}
        ends.add(finish)
    assert ends >= {_core.Finish.stop}


def test_c1_the_targets_context_ends_it() -> None:
    pair = Pair(disagreement=1.0, max_context=10)
    for seed in range(30):
        output, finish = pair.play(_core.SamplingRules(temperature=1.0, seed=seed), 40, length=3)
        assert (len(output), finish) == (10 - len(PROMPT), _core.Finish.context)


def test_l1_logprobs_of_drawn_tokens_too() -> None:
    pair = Pair(disagreement=1.0)
    for seed in range(20):
        rules = _core.SamplingRules(temperature=1.0, seed=seed, banned=[3])
        output, _ = pair.play(rules, 16, length=3, logprobs=2)
        assert len(pair.reports) == len(output)
        for place, report in enumerate(pair.reports):
            row = target([*PROMPT, *output[:place]]).astype(np.float64)
            logs = row - row.max() - np.log(np.exp(row - row.max()).sum())
            assert report.logprob == pytest.approx(logs[output[place]], abs=1e-4)
            assert [token for token, _ in report.top] == np.argsort(-logs, kind="stable")[:2].tolist()


def test_s5_a_seed_repeats_and_seeds_differ() -> None:
    pair = Pair()
    texts = [tuple(pair.play(_core.SamplingRules(temperature=1.0, seed=seed), 12)[0]) for seed in range(50)]
    assert len(set(texts)) > 40
    again = [tuple(pair.play(_core.SamplingRules(temperature=1.0, seed=seed), 12)[0]) for seed in range(50)]
    assert texts == again


def opened(client: Client, mode: _core.Mode = RESIDUAL) -> None:
    client.open(PROMPT, mode=mode, rules=_core.SamplingRules(temperature=1.0, seed=4))


@pytest.mark.parametrize(
    ("mode", "fields", "words"),
    [
        (RESIDUAL, {"tokens": [1, 2], "parent_offsets": [0, 0], "q": []}, "chains, not trees"),
        (RESIDUAL, {"tokens": [1, 2]}, "one each"),
        (RESIDUAL, {"tokens": [], "resampled": 3}, "must not draw the token at position 4"),
        (RESIDUAL, {"tokens": [], "more_tail": True}, "must not draw the token at position 4"),
        (RESIDUAL, {"tokens": [], "resampled": SIZE}, "Draft.resampled"),
        (_core.Mode.coupled, {"tokens": [1], "q": [7]}, "not in residual mode"),
        (_core.Mode.coupled, {"tokens": [], "resampled": 3}, "not in residual mode"),
        (_core.Mode.coupled, {"tokens": [], "more_tail": True}, "not in residual mode"),
    ],
)
def test_drafts_of_the_wrong_kind_are_faults_of_the_request(
    mode: _core.Mode, fields: dict[str, Any], words: str
) -> None:
    client = Pair().rig.client()
    opened(client, mode)
    fault = client.draft(1, **fields)
    assert fault.code == _core.FaultCode.request and words in fault.message
    assert client.open(PROMPT, request=2).tokens


def test_after_a_rejection_the_edge_has_to_draw() -> None:
    rules = _core.SamplingRules(temperature=1.0, seed=4, banned=[1])
    for fields, words in (
        ({"tokens": []}, "has to draw the token at position 4"),
        ({"tokens": [], "resampled": 1}, "rules out at position 4"),
    ):
        client = Pair().rig.client()
        client.open(PROMPT, mode=RESIDUAL, rules=rules)
        verdict = client.draft(1, [1], q=[65535])
        assert verdict.sparse is not None and verdict.tokens == []
        fault = client.draft(2, first_node=2, **fields)
        assert fault.code == _core.FaultCode.request and words in fault.message


def test_a_rejected_request_can_be_cancelled_and_an_old_draft_changes_nothing() -> None:
    client = Pair().rig.client()
    client.open(PROMPT, mode=RESIDUAL, rules=_core.SamplingRules(temperature=1.0, seed=4, banned=[1]))
    assert client.draft(1, [1], q=[65535]).sparse is not None
    assert client.draft(1, [1], q=[65535]) is None
    assert client.draft(2, [1], q=[65535], base=3, first_node=2) is None
    client.say(_core.Cancel(request=1))
    verdict = client.next()
    assert (verdict.base, verdict.finish) == (4, _core.Finish.cancelled)


def test_the_edge_resamples_exactly_when_asked_to() -> None:
    pair = Pair()
    pair.ask(
        pair.session.open(PROMPT, _core.SamplingRules(), stop_ids=[], max_tokens=9, at=0.0, mode=RESIDUAL)
    )
    with pytest.raises(UsageError, match="must not be resampled"):
        pair.session.draft([], at=0.0, resampled=3)
    with pytest.raises(UsageError, match="no row waits"):
        pair.session.more_samples(at=0.0)


def test_a_sparse_row_describes_the_whole_distribution() -> None:
    p = np.zeros(200, np.float32)
    p[:150] = np.float32(1 / 150)
    rejection = Rejection(5, 9, p, p)
    sparse = rejection.sparse
    assert len(sparse.head) == 64 and sparse.tail_mass == pytest.approx(86 / 150, abs=1e-5)
    heads = {token for token, _ in sparse.head}
    samples = [*sparse.tail, *rejection.more().sparse.tail]
    assert len(samples) == 16 and len({token for token, _ in samples}) > 8
    assert all(token not in heads and token < 150 and odds == p[0] for token, odds in samples)
    assert rejection.more().sparse.head == sparse.head
    p[1:] = 0.0
    p[0] = np.nextafter(np.float32(1), np.float32(2))
    certain = Rejection(5, 9, p, p).sparse
    assert (certain.head, certain.tail_mass, certain.tail) == ([(0, 1.0)], 0.0, [])
