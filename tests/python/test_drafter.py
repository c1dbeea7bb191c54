"""The native drafter as Python sees it; what it does is tested with its C++ sources."""

from __future__ import annotations

import pytest

from acespec_edge import _core


def drafter() -> _core.Drafter:
    """A request has begun, with five tokens on the main chain and branches beside it."""
    made = _core.Drafter(_core.FakeEngine(vocabulary=40, seed=3), _core.DrafterOptions(context=100))
    made.begin([5, 6, 7], _core.SamplingRules())
    while made.ready < 5:
        made.step(4, True)
    return made


def test_nodes_are_given_away_under_numbers_that_outlive_a_verdict() -> None:
    speculation = drafter()
    chain = speculation.take_chain(2)
    assert (len(chain.tokens), chain.parents) == (2, [0, 1])
    assert speculation.unsent == speculation.ready - 2
    weights = speculation.survey(6)
    assert weights == sorted(weights, reverse=True)
    assert all(0.0 < weight <= 1.0 for weight in weights)
    more = speculation.take(6)
    assert len(more.tokens) == len(more.parents) == len(weights) == 6
    assert all(0 <= parent < 3 + place for place, parent in enumerate(more.parents))
    assert speculation.apply_verdict(chain.tokens[:1]).hit
    numbers = {node["number"] for node in speculation.snapshot()["nodes"]} - {0}
    assert 2 in numbers
    assert numbers <= set(range(2, 9))
    assert speculation.check() == []


def test_arms_say_what_a_step_expands() -> None:
    speculation = drafter()
    speculation.set_arm(_core.Arm.none)
    assert speculation.step(4, False).exhausted
    assert speculation.step(4, True).rows == 1
    speculation.set_arm(_core.Arm.single)
    assert speculation.step(4, False).rows == 1
    speculation.set_arm(_core.Arm.allotted)
    speculation.allot([1, 2])
    assert not speculation.step(4, False).exhausted
    speculation.set_arm(_core.Arm.measured)
    with pytest.raises(_core.UsageError, match="101 depths"):
        speculation.allot([1] * 101)
    with pytest.raises(TypeError):
        speculation.allot([-1])


def test_what_verdicts_teach_is_shown() -> None:
    speculation = drafter()
    assert speculation.acceptance() == pytest.approx(0.8)
    acceptances = speculation.chain_acceptances(3)
    assert len(acceptances) == 3
    assert all(0.0 < acceptance <= 1.0 for acceptance in acceptances)
    speculation.apply_verdict(speculation.take_chain(2).tokens)
    assert speculation.acceptance() > 0.8


def test_a_draft_in_residual_mode_is_a_chain() -> None:
    speculation = drafter()
    speculation.begin([5, 6, 7], _core.SamplingRules(temperature=1.0), (), residual=True)
    while speculation.ready < 3:
        speculation.step(1, True)
    with pytest.raises(_core.UsageError, match="residual"):
        speculation.take(1)
    speculation.take_chain(2)
    with pytest.raises(_core.UsageError, match="one chain in flight"):
        speculation.take_chain(1)
