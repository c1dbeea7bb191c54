"""Residual mode's native half as Python sees it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from acespec_edge import _core
from tests.python.rules_reference import Row, distribution, philox

SAMPLED = _core.SamplingRules(temperature=0.9, seed=0x0123456789ABCDEF)


def logits_of(seed: int, size: int = 300) -> Row:
    row: Row = np.random.default_rng(seed).normal(0, 2, size).astype(np.float32)
    return row


def drafted(q: _core.QuantisedDistribution, seed: int, position: int) -> int:
    return q.draw(int(_core.stream_uniforms(seed, _core.Stream.draw, position)[0] * 2**32))


@pytest.mark.parametrize("stream", list(_core.Stream))
def test_streams_are_those_of_the_specification(stream: _core.Stream) -> None:
    for seed, position, attempt in ((0, 0, 0), (2**64 - 1, 2**31 - 1, 7), (SAMPLED.seed, 77, 2**32 - 1)):
        words = philox([position, attempt, 0, int(stream)], [seed & (2**32 - 1), seed >> 32])
        wanted = [(words[i] << 21 | words[i + 1] >> 11) / 2**53 for i in (0, 2)]
        assert list(_core.stream_uniforms(seed, stream, position, attempt)) == wanted
    assert int(stream).to_bytes(4, "big") in (b"AceD", b"AceA", b"AceT", b"AceR")


@pytest.mark.parametrize(
    "rules",
    [
        SAMPLED,
        _core.SamplingRules(temperature=1.2, top_k=9),
        _core.SamplingRules(temperature=0.7, top_p=0.8, min_p=0.01),
        _core.SamplingRules(),
    ],
)
def test_probabilities_and_their_quantised_form(rules: _core.SamplingRules) -> None:
    sampler, logits = _core.Sampler(290), logits_of(4)
    p = sampler.probabilities(logits, rules)
    assert p.dtype == np.float32 and p.shape == (290,)
    wanted = {token: math.exp(log_p) for token, log_p in distribution(logits[:290], rules).items()}
    if rules.greedy:
        wanted = {next(iter(wanted)): 1.0}
    assert {token: p[token] for token in np.flatnonzero(p).tolist()} == pytest.approx(wanted, rel=1e-5)
    q = sampler.quantise(logits, rules)
    weights = [q.weight(token) for token in range(290)]
    assert sum(weights) == 65_536
    assert q.tokens == np.flatnonzero(weights).tolist()
    likeliest = int(np.argmax(p))
    for token, weight in enumerate(weights):
        if token != likeliest:
            assert abs(weight - math.floor(float(p[token]) * 65_536)) <= 1


def test_residual_draws_make_up_for_rejections() -> None:
    """Accepted or resampled, tokens follow the target, of which the edge sees a head and some samples."""
    sampler, rules = _core.Sampler(16), _core.SamplingRules(temperature=1.0)
    p = sampler.probabilities(logits_of(1, 16), rules).astype(np.float64)
    q = sampler.quantise(logits_of(2, 16), rules)
    head, tail = np.argsort(-p)[:4], np.argsort(-p)[4:]
    seen = np.zeros(16, np.int64)
    for position in range(20_000):
        token = drafted(q, 5, position)
        taken = _core.stream_uniforms(5, _core.Stream.accept, position)[0]
        if taken * q.weight(token) / 65_536 >= p[token]:
            row = _core.SparseRow(head=[(int(i), p[i]) for i in head], tail_mass=float(p[tail].sum()))
            while (found := _core.residual_draw(row, q, 5, position)) is None:
                point = _core.stream_uniforms(5, _core.Stream.tail, position, len(row.tail))[0]
                sample = int(tail[np.searchsorted(np.cumsum(p[tail]), point * p[tail].sum(), "right")])
                row.tail = [*row.tail, (sample, p[sample])]
            token = found
        seen[token] += 1
    assert stats.chisquare(seen, p / p.sum() * seen.sum()).pvalue > 1e-6


def test_the_drafter_tells_what_it_drew_from() -> None:
    engine, sampler = _core.FakeEngine(vocabulary=40, seed=3), _core.Sampler(40)
    drafter = _core.Drafter(engine, _core.DrafterOptions(context=100))
    drafter.begin([5, 6], SAMPLED, residual=True)
    while drafter.ready < 6:
        drafter.step(1, True)
    chain, text = drafter.take_chain(6).tokens, [5, 6]
    for token, weight in zip(chain, drafter.chain_weights, strict=True):
        q = sampler.quantise(engine.logits(text), SAMPLED)
        assert token == drafted(q, SAMPLED.seed, len(text))
        assert weight == q.weight(token) - 1
        text.append(token)
    row = _core.SparseRow(head=[(3, 0.25)], tail_mass=0.75)
    q = sampler.quantise(engine.logits([5, 6, *chain[:2]]), SAMPLED)
    while drafter.resample(2, row) is None:
        assert _core.residual_draw(row, q, SAMPLED.seed, 4) is None
        row.tail = [*row.tail, (7, 0.5)]
    token = drafter.resample(2, row)
    assert token == _core.residual_draw(row, q, SAMPLED.seed, 4)
    drafter.apply_verdict([*chain[:2], token])
    assert drafter.chain_weights == []
    with pytest.raises(_core.UsageError, match="0 are in flight"):
        drafter.resample(0, row)
