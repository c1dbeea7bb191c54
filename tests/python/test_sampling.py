"""The native sampler against the specification, written out in rules_reference.py."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from acespec_edge import _core
from tests.python.rules_reference import distribution, noise_word, ranked

NOISE = Path(__file__).parents[1] / "vectors" / "noise.txt"


def test_noise_words_are_those_of_the_specification() -> None:
    for first, count in ((0, 300), (151_900, 40)):
        for seed, position in ((0, 0), (2**64 - 1, 2**31 - 1), (0x0123456789ABCDEF, 77)):
            words = _core.gumbel_words(seed, position, first, count)
            assert words.dtype == np.uint32
            assert words.tolist() == [noise_word(seed, position, first + i) for i in range(count)]


def test_noise_words_are_the_golden_ones() -> None:
    rows = [line.split() for line in NOISE.read_text().splitlines() if not line.startswith("#")]
    assert len(rows) >= 16
    for seed, position, token, word in rows:
        got = _core.gumbel_words(int(seed, 16), int(position), int(token), 1)
        assert f"{int(got[0]):08x}" == word


@pytest.mark.parametrize(
    "rules",
    [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_p": 0.9},
        {"temperature": 1.3, "top_k": 20},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 0.9, "top_k": 30, "top_p": 0.8, "min_p": 0.02},
    ],
)
def test_ranking_is_that_of_the_specification(rules: dict[str, float]) -> None:
    random = np.random.default_rng(5)
    sampler = _core.Sampler(700)
    for position in range(10):
        logits = random.normal(0, 3, 768).astype(np.float32)
        request = _core.SamplingRules(seed=int(random.integers(2**63)), **rules)
        order, best = ranked(logits[:700], request, position)
        wanted = distribution(logits[:700], request)
        tokens, scores, log_p = sampler.rank(logits, request, position, 12)
        assert tokens.dtype == np.int32 and scores.dtype == np.float32 and log_p.dtype == np.float32
        assert tokens.tolist() == order[:12].tolist()
        assert scores.tolist() == pytest.approx(best[:12].tolist(), abs=1e-5)
        assert log_p.tolist() == pytest.approx([wanted[token] for token in order[:12].tolist()], abs=1e-5)
        assert sampler.choose(logits, request, position) == order[0]


@pytest.mark.parametrize(
    ("rules", "tokens"),
    [
        ({}, [321, 321, 321, 321]),
        ({"temperature": 1.0}, [915, 127, 188, 124]),
        ({"temperature": 0.5, "top_p": 0.9}, [519, 346, 223, 124]),
        ({"temperature": 1.0, "top_k": 8}, [321, 568, 284, 642]),
        ({"temperature": 1.5, "min_p": 0.25}, [915, 682, 188, 124]),
        ({"temperature": 0.75, "top_k": 200, "top_p": 0.5, "min_p": 0.125}, [519, 346, 173, 124]),
    ],
)
def test_choices_are_those_of_the_protocol_page(rules: dict[str, float], tokens: list[int]) -> None:
    logits = np.array([7919 * token % 1000 / 125 for token in range(1000)], np.float32)
    request = _core.SamplingRules(seed=0x0123456789ABCDEF, **rules)
    sampler = _core.Sampler(1000)
    assert [sampler.choose(logits, request, position) for position in (0, 1, 2, 1000)] == tokens


def test_greedy_is_the_first_largest_logit() -> None:
    sampler = _core.Sampler(500)
    logits = np.zeros(512, np.float32)
    logits[505] = 9  # padding
    assert sampler.choose(logits, _core.SamplingRules(seed=3), 0) == 0
    logits[[77, 400]] = 1.5
    tokens, scores, log_p = sampler.rank(logits, _core.SamplingRules(), 0, 3)
    assert tokens.tolist() == [77, 400, 0]
    assert scores.tolist() == log_p.tolist()
    assert log_p[0] == pytest.approx(1.5 - math.log(498 + 2 * math.exp(1.5)), abs=1e-5)


def test_coupled_draws_follow_the_distribution() -> None:
    logits = np.array([1.0, 0.0, -1.0, 0.5, -0.5], np.float32)
    sampler = _core.Sampler(5)
    p = np.exp(logits.astype(np.float64))
    draws = [sampler.choose(logits, _core.SamplingRules(temperature=1.0, seed=8), i) for i in range(20_000)]
    seen = np.bincount(draws, minlength=5)
    assert stats.chisquare(seen, p / p.sum() * len(draws)).pvalue > 1e-3


def test_shared_noise_couples_different_distributions() -> None:
    """Two models that nearly agree nearly always choose the same token: what the coupling is for."""
    random = np.random.default_rng(2)
    sampler = _core.Sampler(1000)
    same = 0
    for position in range(300):
        p = random.normal(0, 2, 1000).astype(np.float32)
        q = p + random.normal(0, 0.05, 1000).astype(np.float32)
        rules = _core.SamplingRules(temperature=1.0, seed=1)
        same += sampler.choose(p, rules, position) == sampler.choose(q, rules, position)
    assert same > 270


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": 1.0, "top_k": -1}, "top_k"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p"),
        ({"temperature": 1.0, "min_p": 1.5}, "min_p"),
    ],
)
def test_bad_rules_are_named(rules: dict[str, float], says: str) -> None:
    request = _core.SamplingRules(**rules)
    with pytest.raises(_core.UsageError, match=says):
        request.validate()
    with pytest.raises(_core.UsageError, match=says):
        _core.Sampler(4).choose(np.zeros(4, np.float32), request, 0)


def test_bad_logits_are_refused() -> None:
    sampler = _core.Sampler(4)
    rules = _core.SamplingRules()
    with pytest.raises(_core.EngineError, match="NaN"):
        sampler.choose(np.array([0, math.nan, 0, 0], np.float32), rules, 0)
    with pytest.raises(_core.EngineError, match="no logit is finite"):
        sampler.choose(np.full(4, -np.inf, np.float32), rules, 0)
    with pytest.raises(_core.UsageError, match="logits has 3 columns"):
        sampler.choose(np.zeros(3, np.float32), rules, 0)
    with pytest.raises(_core.UsageError, match="2 dimensions"):
        sampler.choose(np.zeros((1, 4), np.float32), rules, 0)
    with pytest.raises(TypeError):
        sampler.choose(np.zeros(4, np.float64), rules, 0)  # never copied behind the caller's back
    with pytest.raises(TypeError):
        sampler.choose(np.zeros(8, np.float32)[::2], rules, 0)


def test_rules_are_values() -> None:
    rules = _core.SamplingRules(temperature=0.5, top_k=3, seed=2**64 - 1)
    assert rules == _core.SamplingRules(temperature=0.5, top_k=3, seed=2**64 - 1)
    assert rules != _core.SamplingRules(temperature=0.5, top_k=3)
    assert not rules.greedy and _core.SamplingRules().greedy
    assert repr(rules) == (
        "SamplingRules(temperature=0.5, top_k=3, top_p=1.0, min_p=0.0, seed=18446744073709551615)"
    )
