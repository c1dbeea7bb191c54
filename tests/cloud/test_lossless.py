"""The output is the target's own, whatever is drafted: the cases of ``tools.bench.lossless`` with fewer
draws, and the suite itself.

Seeds are fixed, so a run either always passes or never; a correct system would have failed with a chance
under one in a million over all cases together, at any number of draws.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec_edge import _core
from tests.cloud.rig import hashed_logits
from tests.python.rules_reference import distribution, shaped_row
from tools.bench.lossless.__main__ import main
from tools.bench.lossless.cases import CASES, Case
from tools.bench.lossless.chi_square import p_value
from tools.bench.lossless.enumeration import distributions, enumerate_outputs
from tools.bench.lossless.suite import FALSE_ALARM, THRESHOLD, Outcome, run, run_negative

DRAWS = 1000
DRAWS_TO_CATCH = 20_000
SIZE = 16
OTHERS = [case for case in CASES if case.what != "two tokens"]
TWO_TOKENS = [case for case in CASES if case.what == "two tokens"]


def name(case: Case) -> str:
    return case.name


def verdict(outcome: Outcome) -> str:
    return outcome.verdict


@pytest.mark.parametrize("case", OTHERS, ids=name)
def test_the_output_is_the_targets(case: Case) -> None:
    assert verdict(run(case, DRAWS)) == "pass"


@pytest.mark.parametrize("case", OTHERS, ids=name)
def test_a_fault_is_caught(case: Case) -> None:
    assert verdict(run_negative(case, DRAWS_TO_CATCH)) == "rejected"


@pytest.mark.parametrize("case", TWO_TOKENS, ids=name)
def test_s1_a_drafter_of_other_odds_changes_nothing(case: Case) -> None:
    """Target (0.6, 0.4), drafter (0.8, 0.2): not the 0.75 that the wrong ``q`` leads to."""
    assert verdict(run(case, 4 * DRAWS)) == "pass"
    assert verdict(run_negative(case, DRAWS_TO_CATCH)) == "rejected"


def test_all_alarms_together_stay_under_one_in_a_million() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert len(CASES) * THRESHOLD < FALSE_ALARM


def test_the_command_prints_one_object_and_fails_when_a_case_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--json", "--draws", "1000", "--only", "greedy: stop ids"]
    assert main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {
        "cases": [
            {"name": "greedy: stop ids", "draws": 1000, "p": 1.0, "negative": False, "verdict": "pass"},
            {"name": "greedy: stop ids", "draws": 20, "p": 0.0, "negative": True, "verdict": "rejected"},
        ]
    }
    monkeypatch.setattr("tools.bench.lossless.suite.THRESHOLD", -1.0)
    assert main(arguments) == 1, "a control that is not caught"


def test_p_values_are_those_of_chance() -> None:
    """Under the hypothesis they are uniform; near 0 they must not come up too often."""
    random = np.random.default_rng(0)
    for draws, cells in ((500, 30), (2500, 289), (20_000, 289)):
        odds = random.dirichlet(np.full(cells, 0.5))
        found = np.array([p_value(random.multinomial(draws, odds), odds) for _ in range(2000)])
        for share in (0.3, 0.1, 0.03, 0.01):
            assert (found < share).mean() < share + 4 * math.sqrt(share / 2000)
        assert (found < 0.5).mean() > 0.4


def test_p_values_of_what_cannot_be() -> None:
    assert p_value(np.array([500, 0]), np.array([1.0, 0.0])) == 1.0
    assert p_value(np.array([499, 1]), np.array([1.0, 0.0])) == 0.0
    assert p_value(np.array([250, 250]), np.array([0.4, 0.6])) < 1e-5
    rare = np.array([0.5, 0.5 - 1e-6, *[1e-7] * 10])
    assert 0.1 < p_value(np.array([498, 501, 1, *[0] * 9]), rare) < 1.0


TOKENS = st.lists(st.integers(0, SIZE - 1), max_size=6)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_enumeration_is_that_of_the_specification(data: st.DataObject) -> None:
    """Written a second time, in probabilities and for many rows at once."""
    prompt, stop_ids = data.draw(TOKENS), data.draw(TOKENS)
    rules = _core.SamplingRules(
        temperature=data.draw(st.sampled_from([0.0, 0.5, 1.0])),
        top_k=data.draw(st.sampled_from([0, 3, 30])),
        top_p=data.draw(st.sampled_from([1.0, 0.7])),
        min_p=data.draw(st.sampled_from([0.0, 0.1])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 0.5, 1.5])),
        presence_penalty=data.draw(st.sampled_from([0.0, 1.25])),
        frequency_penalty=data.draw(st.sampled_from([0.0, -0.5])),
        logit_bias=[(3, data.draw(st.sampled_from([0.5, -100.0])))],
        banned=data.draw(st.lists(st.integers(0, 7), max_size=3)),
        allowed=data.draw(st.just([]) | st.just([*range(4, 12)])),
        min_tokens=data.draw(st.integers(0, 4)),
        carried=data.draw(st.integers(0, len(prompt))),
    )
    outputs = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, SIZE, (4, 3))
    logits = hashed_logits(SIZE)
    rows = np.stack([logits(output) for output in outputs.tolist()])
    found = distributions(rows.astype(np.float64), rules, prompt, outputs, stop_ids)
    for row, output, p in zip(rows, outputs.tolist(), found, strict=True):
        shaped = shaped_row(row, SIZE, rules, prompt=prompt, output=output, stop_ids=stop_ids)
        if not np.isfinite(shaped).any():
            continue
        wanted = np.zeros(SIZE)
        left = distribution(shaped, rules)
        likeliest = list(left)[:1] if rules.greedy else list(left)
        for token in likeliest:
            wanted[token] = 1.0 if rules.greedy else math.exp(left[token])
        np.testing.assert_allclose(p, wanted, atol=1e-6)


def test_enumeration_of_ends() -> None:
    def uniform(tokens: object) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return np.zeros(4, np.float32)

    rules = _core.SamplingRules(temperature=1.0)
    joint = enumerate_outputs(uniform, [0], rules, size=4, length=2, stop_ids=[3])
    assert joint.shape == (5, 5)
    assert joint.sum() == pytest.approx(1.0)
    assert joint[3].tolist() == [0, 0, 0, 0, 0.25] and joint[0].tolist() == [1 / 16] * 4 + [0]


def test_s5_seeds_differ_and_a_seed_repeats() -> None:
    sampler = _core.Sampler(SIZE)
    target = hashed_logits(SIZE, seed=1, sharpness=1.0)

    def text(seed: int) -> list[int]:
        rules = _core.SamplingRules(temperature=1.0, seed=seed)
        tokens = [3]
        for _ in range(8):
            tokens.append(sampler.choose(target(tokens), rules, len(tokens)))
        return tokens

    texts = [tuple(text(seed)) for seed in range(200)]
    assert len(set(texts)) > 150
    assert texts == [tuple(text(seed)) for seed in range(200)]
