"""Whether to draft, and whether the cloud goes on meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acespec_edge.contest import Contest
from acespec_edge.control import Controller
from acespec_edge.policy import POLICIES
from tests.python.control_kit import FORWARD, STEP, controller, measured, verdict


def test_a_drafter_that_hits_nothing_does_not_pay_and_one_that_does_comes_back() -> None:
    control = measured(tokens=6)
    assert control.drafting_pays()
    control.accepts(0.05)
    for _ in range(30):
        control.recovered(False)
    assert not control.drafting_pays()
    control.accepts(0.9)
    for _ in range(30):
        control.recovered(True)
    assert control.drafting_pays()


def test_drafting_begins_and_ends_at_two_bounds() -> None:
    """The acceptance at which it begins is above that at which it ends."""
    levels = [level / 200 for level in range(1, 200)]

    def crossing(start: bool) -> float:
        control = measured(tokens=5, rounds=4)
        control.accepts(1.0 if start else 0.0)
        assert control.drafting_pays() is start
        for level in reversed(levels) if start else levels:
            control.accepts(level)
            if control.drafting_pays() is not start:
                return level
        raise AssertionError("never")

    ends, begins = crossing(True), crossing(False)
    assert ends < begins < ends + 0.2


def test_what_drafting_really_yields_outweighs_what_it_should() -> None:
    """Acceptance looks fine, but every round takes twice what it is made of."""
    waiting = replace(POLICIES["auto"], go_on=False)
    good, bad = controller(waiting), controller(waiting)
    for control, slowness in ((good, 1.0), (bad, 2.5)):
        control.begin(10)
        control.accepts(0.8)
        control.answered(verdict(0.0, rough=True))
        for number in range(1, 60):
            control.answered(verdict(slowness * 0.16 * number, 3, 4))
    assert good.drafting_pays()
    assert not bad.drafting_pays()


def left_alone(control: Controller, tokens: int, since: float) -> int:
    """Lets the target decode by itself; returns after how many tokens drafting is tried again."""
    for number in range(tokens):
        control.answered(verdict(since + STEP * number, answered=False))
        if control.drafting_pays():
            return number
    raise AssertionError(f"not within {tokens} tokens")


def test_a_bad_spell_is_not_held_against_drafting_for_ever() -> None:
    control = measured(replace(POLICIES["auto"], go_on=False), tokens=4)
    assert control.drafting_pays()
    at = 8.0
    for _ in range(20):  # every verdict is a second late
        at += 1.2
        control.answered(verdict(at, 4, 8))
    assert not control.drafting_pays()
    assert 20 < left_alone(control, 1000, at) < 1000


def test_what_the_target_does_alone_says_nothing_of_drafting() -> None:
    """A request in mode "cloud", or the end of one that has outgrown the drafter."""
    control = measured(tokens=5)
    before = control.drafting_pays()
    control.begin(10)
    control.answered(verdict(100.0, rough=True))
    for number in range(300):
        control.answered(verdict(100.05 + 0.05 * number, answered=False))
    assert control.drafting_pays() is before is True


@pytest.mark.parametrize("alone", [True, False])
def test_a_policy_may_settle_whether_to_draft(alone: bool) -> None:
    control = measured(replace(POLICIES["auto"], cloud_only=alone))
    for acceptance in (0.0, 1.0):
        control.accepts(acceptance)
        assert control.drafting_pays() is not alone
    assert control.starts_alone(10) is alone


def after(rounds: int, *, step: float, acceptance: float) -> Controller:
    """Beside a target whose plain steps and verifications take ``step``, a tenth of a second away."""
    control = controller()
    control.begin(10)
    control.answered(verdict(0.0, rough=True))
    control.accepts(acceptance)
    for number in range(1, rounds + 1):
        control.forwarded(1, FORWARD)
        nodes = number % 2 * 8
        control.answered(verdict(0.08 * number, 3 if nodes else 1, nodes, verify=step))
        control.drafting_pays()
    return control


def test_the_cloud_goes_on_while_nobody_knows_the_drafter() -> None:
    for rounds in range(5):
        control = after(rounds, step=0.2, acceptance=0.9)
        assert control.goes_on() and control.starts_alone(10), "however good it seems"
    control = after(30, step=0.2, acceptance=0.9)
    assert not control.goes_on() and not control.starts_alone(10)
    for policy, goes_on in ((POLICIES["chain"], False), (replace(POLICIES["auto"], go_on=True), True)):
        assert controller(policy).goes_on() is goes_on
        assert controller(policy).starts_alone(5000) is goes_on


@pytest.mark.parametrize(
    ("step", "acceptance", "joins"), [(0.2, 0.9, False), (0.01, 0.7, True), (0.2, 0.2, True)]
)
def test_the_cloud_goes_on_where_drafts_are_far_away_or_poor(
    step: float, acceptance: float, joins: bool
) -> None:
    assert after(30, step=step, acceptance=acceptance).goes_on() is joins


def test_a_way_that_yields_less_than_it_should_is_left_and_tried_again() -> None:
    """The cloud waits for drafts, each of which takes a second longer than its parts."""
    control = after(30, step=0.2, acceptance=0.9)
    late = 0
    while not control.goes_on():
        late += 1
        control.answered(verdict(10.0 + 1.2 * late, 3, 8, verify=0.2))
        control.drafting_pays()
        assert late < 100
    assert late > 0
    for number in range(2000):
        control.answered(verdict(200.0 + 0.2 * number, verify=0.2, answered=False))
        control.drafting_pays()
        if not control.goes_on():
            return
    raise AssertionError("never tried again")


def test_a_drafter_whose_tokens_are_taken_is_known_sooner() -> None:
    def tokens_until_proven(drafted: int) -> int:
        contest, tokens = Contest(POLICIES["auto"]), 0
        while contest.joins:
            contest.saw(1 + drafted, drafted)
            contest.choose(waited=10.0, joined=5.0, alone=2.0)
            tokens += 1 + drafted
        return tokens

    assert tokens_until_proven(0) == 24
    assert (tokens_until_proven(1), tokens_until_proven(7)) == (12, 16)


def test_what_is_learned_of_one_way_holds_for_the_other() -> None:
    """Texts on which the drafter yields less than its model says, in whatever way it is used."""
    contest = Contest(POLICIES["auto"])
    contest.saw(100, 0)
    contest.choose(waited=10.0, joined=9.0, alone=2.0)
    assert not contest.joins
    for _ in range(200):
        contest.observe(5, 10.0, counts=True)
        contest.choose(waited=10.0, joined=9.0, alone=2.0)
        assert not contest.joins and contest.drafting
    for _ in range(200):
        contest.observe(3, 10.0, counts=True)
        contest.choose(waited=10.0, joined=14.0, alone=2.0)
        assert contest.joins, "by its own record it yields as little, and its model says more"


def test_the_cloud_starts_alone_if_it_reads_a_prompt_faster() -> None:
    control = after(30, step=0.2, acceptance=0.9)
    assert not control.starts_alone(4000), "nobody knows how fast the drafter reads"
    control.begin(1000)
    control.answered(verdict(100.0, rough=True, verify=0.1))
    control.prefilled(100, 0.1)
    assert not control.starts_alone(10)
    assert control.starts_alone(1000)
    for _ in range(100):
        control.prefilled(1000, 0.05)
    assert not control.starts_alone(1000), "it has become a fast reader"


def test_a_request_starts_with_the_target_alone_where_the_last_one_ended_so() -> None:
    control = after(30, step=0.2, acceptance=0.9)
    assert not control.starts_alone(10)
    control.accepts(0.01)
    for _ in range(30):
        control.recovered(False)
    assert not control.drafting_pays()
    control.begin(10)
    assert control.starts_alone(10)
