"""The output distribution is the target's, whatever the drafter: chi-square of sampled pairs against
enumeration.

Seeds are fixed, so a run either always passes or never; the threshold is such that a correct sampler
would have failed with a chance under one in a million over all tests here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2

from acespec_edge import _core
from acespec_edge.protocol import ROOT
from cloud_stub.judge import Ruling, Terms, judge
from cloud_stub.verifiers.base import Rows
from tests.cloud.rig import hashed_logits

SIZE = 16
DRAWS = 20_000
ALARM = 1e-7
PROMPT = [3]

TARGET = hashed_logits(SIZE, seed=1, sharpness=1.0)
DRAFTER = hashed_logits(SIZE, seed=2, sharpness=1.0)

LogitsOf = Callable[[Sequence[int]], Rows]
Judge = Callable[[Rows, int, list[int], list[int], Terms, _core.Sampler], Ruling]
Probabilities = npt.NDArray[np.float64]


def cached(logits_of: LogitsOf) -> LogitsOf:
    known: dict[tuple[int, ...], Rows] = {}

    def lookup(tokens: Sequence[int]) -> Rows:
        key = tuple(tokens[-3:])
        if key not in known:
            known[key] = logits_of(tokens)
        return known[key]

    return lookup


def probabilities(logits: Rows, rules: _core.SamplingRules) -> Probabilities:
    """The distribution that the rules make of the logits, written down plainly."""
    scaled = logits.astype(np.float64) / rules.temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    if rules.top_k:
        p[order[rules.top_k :]] = 0.0
        p /= p.sum()
    if rules.top_p < 1.0:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= rules.top_p]] = 0.0
        p /= p.sum()
    return p


def expected_pairs(target: LogitsOf, rules: _core.SamplingRules) -> Probabilities:
    """Probability of every two-token continuation, [SIZE * SIZE]."""
    first = probabilities(target(PROMPT), rules)
    second = [probabilities(target([*PROMPT, token]), rules) for token in range(SIZE)]
    return np.concatenate([p * row for p, row in zip(first, second, strict=True)])


def sampled_pairs(
    target: LogitsOf, drafter: LogitsOf, decide: Judge, draws: int, **rules: float
) -> npt.NDArray[np.int64]:
    """Counts of the pairs that drafting chains of two and judging them yields, one request per seed."""
    sampler = _core.Sampler(SIZE)
    counts = np.zeros(SIZE * SIZE, dtype=np.int64)
    for seed in range(draws):
        request = _core.SamplingRules(seed=seed, **rules)
        terms = Terms(request, frozenset(), len(PROMPT), 100, 1000)
        committed = list(PROMPT)
        while len(committed) < len(PROMPT) + 2:
            chain: list[int] = []
            for _ in range(2):
                context = committed + chain
                chain.append(sampler.choose(drafter(context), request, len(context)))
            rows = np.stack([target(committed + chain[:length]) for length in range(3)])
            ruling = decide(rows, len(committed), chain, [ROOT, 0], terms, sampler)
            committed += [*(chain[node] for node in ruling.path), ruling.token]
        counts[committed[1] * SIZE + committed[2]] += 1
    return counts


def p_value(counts: npt.NDArray[np.int64], expected: Probabilities) -> float:
    """Pearson's test; cells that expect fewer than five draws are pooled. Impossible cells must be empty."""
    assert counts[expected == 0.0].sum() == 0, "a token that the rules exclude was produced"
    means = expected * counts.sum()
    large = means >= 5.0
    observed = np.append(counts[large], counts[~large].sum())
    means = np.append(means[large], means[~large].sum())
    if means[-1] < 5.0:
        observed, means = observed[:-1], means[:-1]
    statistic = float(((observed - means) ** 2 / means).sum())
    return float(chi2.sf(statistic, len(means) - 1))


@pytest.mark.parametrize(
    "rules", [{"temperature": 1.0}, {"temperature": 0.7, "top_k": 6}, {"temperature": 1.3, "top_p": 0.8}]
)
def test_coupled_sampling_through_the_judge_is_the_targets_distribution(rules: dict[str, float]) -> None:
    target, drafter = cached(TARGET), cached(DRAFTER)
    counts = sampled_pairs(target, drafter, judge, DRAWS, **rules)
    assert p_value(counts, expected_pairs(target, _core.SamplingRules(**rules))) > ALARM


DRAFTERS_FAVOURITE = int(np.argmax(DRAFTER(PROMPT)))
FIRST_ODDS = probabilities(TARGET(PROMPT), _core.SamplingRules(temperature=1.0)) / probabilities(
    DRAFTER(PROMPT), _core.SamplingRules(temperature=1.0)
)
"""p/q of every first token; over 1 counts as 1."""


def accept_the_drafters_favourite(
    rows: Rows, base: int, tokens: list[int], parents: list[int], terms: Terms, sampler: _core.Sampler
) -> Ruling:
    """A wrong rule: a drafted token that is the drafter's likeliest passes without asking the target."""
    if tokens[0] == DRAFTERS_FAVOURITE:
        return Ruling([0], sampler.choose(rows[1], terms.rules, base + 1), _core.Finish.none)
    return judge(rows, base, tokens, parents, terms, sampler)


def accept_by_ratio_and_correct_from_p(
    rows: Rows, base: int, tokens: list[int], parents: list[int], terms: Terms, sampler: _core.Sampler
) -> Ruling:
    """A subtler wrong rule: the residual rule's min(1, p/q), but correcting from p instead of max(0, p -
    q).
    """
    if FIRST_ODDS[tokens[0]] > (0.618034 * terms.rules.seed) % 1.0:
        return Ruling([0], sampler.choose(rows[1], terms.rules, base + 1), _core.Finish.none)
    return Ruling([], sampler.choose(rows[0], terms.rules, base), _core.Finish.none)


@pytest.mark.parametrize("wrong", [accept_the_drafters_favourite, accept_by_ratio_and_correct_from_p])
def test_the_test_catches_biased_rules(wrong: Judge) -> None:
    target, drafter = cached(TARGET), cached(DRAFTER)
    counts = sampled_pairs(target, drafter, wrong, DRAWS, temperature=1.0)
    expected = expected_pairs(target, _core.SamplingRules(temperature=1.0))
    assert p_value(counts, expected) < ALARM


def test_s1_two_tokens_keep_the_targets_odds() -> None:
    def fixed(first: float) -> LogitsOf:
        row = np.full(SIZE, -np.inf, dtype=np.float32)
        row[:2] = np.log([first, 1.0 - first])
        return lambda tokens: row

    counts = sampled_pairs(fixed(0.6), fixed(0.8), judge, DRAWS, temperature=1.0)
    expected = expected_pairs(fixed(0.6), _core.SamplingRules(temperature=1.0))
    assert p_value(counts, expected) > ALARM
    first = counts.reshape(SIZE, SIZE).sum(axis=1) / DRAWS
    assert first[0] == pytest.approx(0.6, abs=0.02)


def test_s5_seeds_differ_and_a_seed_repeats() -> None:
    sampler = _core.Sampler(SIZE)
    target = cached(TARGET)

    def text(seed: int) -> list[int]:
        rules = _core.SamplingRules(temperature=1.0, seed=seed)
        tokens = list(PROMPT)
        for _ in range(8):
            tokens.append(sampler.choose(target(tokens), rules, len(tokens)))
        return tokens

    texts = [tuple(text(seed)) for seed in range(200)]
    assert len(set(texts)) > 150
    assert texts == [tuple(text(seed)) for seed in range(200)]
