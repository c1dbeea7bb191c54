"""How much the controller has drafted and sent, and when."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec_edge import _core
from acespec_edge.control import Controller
from acespec_edge.policy import POLICIES
from tests.python.control_kit import FORWARD, NODE, RTT, STEP, controller, measured, verdict

# How many nodes.


@given(
    weights=st.lists(st.floats(0.0, 1.0, width=32), max_size=40),
    tokens=st.integers(1, 12),
)
@settings(max_examples=50, deadline=None)
def test_a_node_is_sent_if_it_is_worth_more_than_it_costs(weights: list[float], tokens: int) -> None:
    control = measured(tokens=tokens, rounds=4)
    falling = sorted(weights, reverse=True)
    count = control.count(falling)

    def gain(nodes: int) -> float:
        return sum(falling[:nodes]) / control.rate - sent(control, nodes)

    assert gain(count) == pytest.approx(max(map(gain, range(len(falling) + 1))), abs=1e-6)


def sent(control: Controller, nodes: int) -> float:
    """Seconds of sending, at four bytes a node, and verifying."""
    return control.target.verifying(nodes) + 4 * nodes * control.link.seconds_per_byte_up


def test_nodes_that_cost_nothing_are_sent_and_those_after_a_jump_are_not() -> None:
    """Products that come in tiles of eight rows."""
    control = controller()
    control.begin(10)
    control.answered(verdict(0.0, rough=True))
    for number in range(1, 81):
        nodes = 1 + number % 24
        control.answered(verdict(0.3 * number, 3, nodes, verify=0.1 + 0.1 * (nodes // 8)))
    assert control.rate == pytest.approx(10)
    assert control.count([0.1] * 20) == 7
    assert control.count([0.1] * 7 + [0.02] * 13) == 7
    assert control.count([0.1] * 4 + [0.0] * 16) == 4
    assert control.count([0.2] * 20) == 15


def test_the_first_draft_is_small_and_later_ones_double() -> None:
    control = controller()
    control.begin(10)
    assert control.target.cap == 8
    sizes = []
    for number in range(5):
        sizes.append(control.target.cap)
        control.answered(verdict(float(number), 3, control.target.cap))
    assert sizes == [8, 16, 32, 64, 128]
    control.answered(verdict(9.0, 3, 2))
    assert control.target.cap == 256


def test_dear_nodes_make_short_drafts() -> None:
    dear = controller()
    dear.begin(10)
    dear.answered(verdict(0.0, rough=True))
    for number in range(1, 41):
        nodes = 2 + number % 5
        dear.answered(verdict(0.6 * number, 3, nodes, verify=0.3 + 0.05 * nodes))
    cheap = measured()
    weights = [0.9**depth for depth in range(1, 60)]
    assert dear.count(weights) < cheap.count(weights) / 1.5
    assert dear.chain_length(32) < cheap.chain_length(32)


# How wide a forward is.


def test_a_forward_that_ends_in_time_is_free_and_one_that_does_not_is_paid_for() -> None:
    control = measured()
    control.sent(8.0, 10, 90)
    frontier = [0.01] * 16
    assert control.width(frontier, 8.0, drafted=None) > 0
    assert control.width([1e-6], 8.0, drafted=None) == 1
    late = 8.0 + STEP + 0.01 - 0.0005  # half a millisecond before a delta would leave
    overrun = control.width(frontier, late, drafted=None)
    assert overrun * 0.01 * 0.8 / control.rate < control.forward.seconds(1)
    assert overrun == 0
    assert control.width([0.9] * 16, late, drafted=None) > 0


def test_while_the_cloud_waits_all_of_a_forward_is_paid_for_and_its_children_too() -> None:
    control = measured()
    control.sent(8.0, 10, 90)
    for weights in ([0.02], [0.05] * 16, [0.2, 0.1], [0.9, 0.5, 0.3], []):
        width = control.width(weights, 8.0, drafted=0)
        best = max(
            range(len(weights) + 1),
            key=lambda count: _gain_rate(control, weights[:count]),
        )
        assert width == best
    assert control.width([0.02], 8.0, drafted=0) == 0
    assert control.width([0.9], 8.0, drafted=0) == 1


def _gain_rate(control: Controller, weights: Sequence[float]) -> float:
    if not weights:
        return 0.0
    prices = [sent(control, number) - sent(control, number - 1) for number in range(1, 17)]
    gain = sum(
        max(0.0, weight * 0.8 / control.rate - price) for weight, price in zip(weights, prices, strict=False)
    )
    seconds = control.forward.seconds(len(weights))
    return gain / seconds if gain > seconds else 0.0


def test_a_forward_is_no_wider_than_the_machine() -> None:
    control = controller(width=4)
    assert control.most == 4
    assert control.width([0.9] * 50, 0.0, drafted=None) <= 4


# How long a chain is.


@given(acceptance=st.floats(0.05, 0.99), most=st.integers(0, 24))
@settings(max_examples=50, deadline=None)
def test_the_length_of_a_chain_is_the_best_of_all(acceptance: float, most: int) -> None:
    control = measured("chain", rounds=4, acceptance=acceptance)
    away = control.link.round_trip(40, 60)

    def rate(length: int) -> float:
        tokens = 1 + sum(acceptance**depth for depth in range(1, length + 1))
        return tokens / (away + sent(control, length) + control.forward.seconds(1) * length)

    chosen = control.chain_length(most)
    assert chosen <= most
    if most:
        assert rate(chosen) == pytest.approx(max(rate(length) for length in range(1, most + 1)))


def test_chains_that_always_break_at_one_place_end_there() -> None:
    control = measured("chain", acceptance=0.95)
    free = control.chain_length(30)
    for _ in range(200):
        control.walked(3, 12)
    assert control.chain_length(30) <= 4 < free
    for _ in range(400):
        control.walked(12, 12)
    assert control.chain_length(30) > 8, "old chains fade"


def test_a_chain_longer_than_any_that_is_kept_book_of_is_taken() -> None:
    control = measured("chain")
    control.walked(70, 80)
    control.walked(0, 0)
    assert control.chain_length(90) >= 1


# The budget.


def test_the_budget_is_what_fits_before_the_verdict() -> None:
    control = measured("acespec")
    round_ = control.link.round_trip(40, 60) + control.target.verifying(0)
    assert control.budget() == control.forward.nodes_within(round_, 16) > 16
    assert measured(replace(POLICIES["acespec"], budget=24)).budget() == 24


def test_a_budget_is_bounded_however_fast_the_drafter_is() -> None:
    control = controller("acespec-uniform")
    for width in (1, 16):
        control.forwarded(width, 1e-7)
        control.forwarded(width, 1e-7)
    budget = control.budget()
    assert budget <= 4096
    assert sum(_core.allocate_uniform(0, budget)) == budget


# More of the tree before the verdict.


def test_a_delta_leaves_in_time_to_be_there_when_the_cloud_is_done() -> None:
    control = measured()
    assert not control.delta_is_due(8.0), "nothing is under way"
    control.sent(8.0, 10, 90)
    done = 8.0 + STEP + 10 * NODE
    assert not control.delta_is_due(done - 2 * FORWARD)
    assert control.delta_is_due(done - FORWARD / 2), "the next forward would end too late"
    assert control.delta_is_due(done + 1)
    control.asked()
    assert not control.delta_is_due(done + 1), "one for each verdict"
    control.working(9.0, 10)
    assert control.delta_is_due(9.0 + STEP + 10 * NODE)


def test_a_delta_pays_if_its_tokens_outweigh_the_wait_of_the_draft_behind_it() -> None:
    control = measured()
    control.composed(0.0)
    # Verified within a round trip: nothing has to wait.
    assert control.delta_pays(0.5, 0.5, 5)
    assert not control.delta_pays(0.0, 0.0, 5), "its bytes are not worth nothing"
    nodes = 250
    late = control.target.verifying(nodes) - control.link.rtt
    assert late > 0
    sent = nodes * 4 * control.link.seconds_per_byte_up
    fits = 0.5
    bound = control.rate * (fits * late + sent) - fits
    assert bound > 0
    assert not control.delta_pays(bound * 0.999, fits, nodes)
    assert control.delta_pays(bound * 1.001, fits, nodes)
    for _ in range(100):
        control.composed(late)
    assert control.delta_pays(bound * 0.999, fits, nodes), "the draft is not ready any earlier"


@pytest.mark.parametrize("in_flight", [True, False])
def test_a_policy_may_settle_deltas(in_flight: bool) -> None:
    control = measured(replace(POLICIES["auto"], in_flight=in_flight))
    assert control.delta_pays(0.0, 0.0, 100) is in_flight
    assert control.delta_pays(9.0, 1.0, 1) is in_flight


# Waiting.


@given(
    sent=st.floats(0.0, 100.0),
    waits=st.lists(st.floats(0.0, 0.4), min_size=1, max_size=20),
    idle=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_waiting_ends_later_than_now(sent: float, waits: list[float], idle: bool) -> None:
    """Else the loop that waits would spin."""
    control = measured(rounds=4)
    if idle:
        control.sent(sent, 8, 90)
    else:
        control.working(sent, 8)
    for now in itertools.accumulate(waits, initial=sent):
        until = control.patience(now)
        assert now < until < now + 2.0
        if control.delta_is_due(now):
            control.asked()


def test_past_the_expected_moment_waiting_goes_on_by_and_by() -> None:
    control = measured()
    control.sent(8.0, 8, 90)
    control.asked()
    due = control.patience(8.0)
    assert due == pytest.approx(8.0 + RTT + STEP + 8 * NODE, abs=0.02)
    for now in (due, due + 0.5, due + 60.0):
        assert now + 0.01 <= control.patience(now)
    assert controller().patience(5.0) >= 5.01


def test_a_better_read_verdict_time_is_used() -> None:
    """The larger the message and the tree, the later the verdict is expected."""
    control = measured()
    control.sent(8.0, 8, 90)
    control.asked()
    small = control.patience(8.0)
    control.sent(8.0, 60, 500)
    control.asked()
    assert control.patience(8.0) >= small + 50 * NODE


def test_a_cloud_that_claims_to_take_no_time_at_all_is_no_trouble() -> None:
    """Its queue is longer than the exchange, and nothing takes it any time."""
    control = controller("chain")
    control.begin(4)
    for number in range(100):
        instant = {"round_trip": 0.0, "verify": 0.0, "bytes_up": 40 + number % 9, "queue": 4e3}
        control.answered(verdict(0.01 * number, 3, number % 3, **instant))  # type: ignore[arg-type]
        control.sent(0.01 * number, 3, 60)
    assert control.chain_length(5) >= 1
    assert control.rate > 0 and control.alone > 0 and control.budget() >= 1
    control.drafting_pays()
    assert control.patience(2.0) > 2.0
