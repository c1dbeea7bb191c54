"""What the controller makes of what it is told: prices, rates, and what it says of them."""

from __future__ import annotations

import pytest

from acespec_edge import _core
from acespec_edge.control import Controller
from tests.python.control_kit import NODE, RTT, STEP, controller, measured, verdict


def test_measurements_become_prices() -> None:
    control = measured()
    assert control.link.rtt == pytest.approx(RTT, rel=0.2)
    assert control.target.verifying(0) == pytest.approx(STEP, rel=0.05)
    assert control.target.verifying(40) == pytest.approx(STEP + 40 * NODE, rel=0.05)
    assert control.rate == pytest.approx(5 / 0.2)
    assert control.target.per_node == pytest.approx(NODE, rel=0.1)


def test_before_anything_is_measured_there_are_prices_too() -> None:
    control = controller()
    assert control.rate > 0
    assert control.alone == pytest.approx(1 / 0.05)
    assert control.count([0.9, 0.5, 1e-6]) == 2
    assert control.chain_length(20) >= 1
    assert control.budget() >= 1


def test_plain_steps_are_measured_apart_from_verifications() -> None:
    """On some machines one token is far cheaper than a few."""
    control = measured()
    for number in range(60):
        control.answered(verdict(9.0 + number, verify=0.02, answered=False))
    assert control.target.step == pytest.approx(0.02, rel=0.01)
    assert control.alone == pytest.approx(1 / 0.02, rel=0.01)
    assert control.target.verifying(6) == pytest.approx(STEP + 6 * NODE, rel=0.05)
    assert control.target.verifying(1) == pytest.approx(STEP + NODE, rel=0.05)
    assert control.target.verifying(0) == pytest.approx(0.02, rel=0.01)
    before = control.target.step
    control.answered(verdict(99.0, 3, 8))
    assert control.target.step == before


def test_fewer_nodes_than_were_tried_cost_no_less_than_a_plain_step() -> None:
    control = controller()
    control.begin(10)
    control.answered(verdict(0.0, rough=True))
    for number in range(1, 9):
        nodes = 8 * (1 + number % 2)
        control.answered(verdict(float(number), 3, nodes, verify=0.2 + 0.02 * nodes))
    assert control.target.verifying(2) == pytest.approx(0.24, rel=0.05), "as it rises from 8 to 16"
    for number in range(10, 40):
        control.answered(verdict(float(number), verify=0.3, answered=False))
    assert control.target.verifying(0) == control.target.verifying(2) == pytest.approx(0.3, rel=0.05)
    assert control.target.verifying(8) == pytest.approx(0.36, rel=0.05)


def test_a_plain_step_tells_of_verifications_until_there_is_one() -> None:
    control = controller()
    control.answered(verdict(0.0, rough=True))
    control.answered(verdict(1.0, verify=0.4))
    assert control.target.verifying(0) == pytest.approx(0.4)
    assert control.target.verifying(10) > 0.4
    control.answered(verdict(2.0, 3, 4, verify=0.1))
    assert control.target.verifying(4) == pytest.approx(0.1)


def test_the_prefill_is_neither_a_step_nor_a_round() -> None:
    control = controller()
    control.begin(1000)
    control.answered(verdict(7.0, rough=True, verify=5.0))
    assert control.target.verifying(0) == pytest.approx(0.05)
    assert control.target.step == pytest.approx(0.05)


def test_queues_are_those_that_an_idle_cloud_has() -> None:
    control = measured()
    control.working(0.0, 8)
    for number in range(20):
        control.answered(verdict(10.0 + number, 3, 8, queue=0.5))
    assert control.alone == pytest.approx(1 / control.target.step)
    control.sent(40.0, 8, 90)
    control.answered(verdict(40.3, 3, 8, queue=0.08))
    assert control.alone == pytest.approx(1 / (control.target.step + 0.01))
    control.begin(10)
    control.answered(verdict(50.0, rough=True, queue=9.0))
    control.answered(verdict(51.0, queue=9.0))
    assert control.alone == pytest.approx(1 / (control.target.step + 0.01)), "that was of the request before"


def test_a_new_request_forgets_the_pause_before_it() -> None:
    control = measured()
    before = control.rate
    control.begin(20)
    control.answered(verdict(500.0, rough=True))
    assert control.rate == before
    control.answered(verdict(500.2, 5, 8))
    assert control.rate == pytest.approx(before)
    control.sent(500.2, 8, 90)
    control.begin(20)
    assert not control.delta_is_due(1e9)
    assert control.width([1.0], 501.0, drafted=None) > 0, "until the first verdict all time is free"


def test_what_arrives_in_one_burst_counts_but_makes_no_rate() -> None:
    control = controller()
    control.begin(4)
    control.answered(verdict(1.0, rough=True))
    model = control.rate
    for _ in range(5):
        control.answered(verdict(1.0, answered=False))
    assert control.rate == pytest.approx(model, rel=0.5)
    control.answered(verdict(2.0, answered=False))
    assert 5 < control.rate < 7


def test_the_token_that_residual_mode_draws_counts() -> None:
    row = _core.SparseRow(head=[(1, 65536)], tail_mass=0, tail=[])
    control = controller()
    control.begin(4)
    control.answered(verdict(0.0, rough=True))
    for number in range(1, 60):
        control.answered(verdict(0.2 * number, 2, 4, sparse=row))
    assert control.rate == pytest.approx(3 / 0.2)


# What is told.


@pytest.mark.parametrize("control", [controller(), measured()])
def test_why_is_one_sentence_of_figures(control: Controller) -> None:
    why = control.why()
    assert "\n" not in why and ". " not in why and not why.endswith(".")
    for unit in ("round trip", "for 1 node", "forward", "first guesses", "tokens/s", "target alone"):
        assert unit in why
    assert "nan" not in why and "inf" not in why


def test_reading_is_told_by_what_was_read() -> None:
    control = controller()
    control.begin(200)
    control.answered(verdict(0.0, rough=True, verify=0.4, reused=100))
    assert control._cloud_read == pytest.approx(0.004)
    control.begin(200)
    control.answered(verdict(1.0, rough=True, verify=0.1, reused=190))
    assert control._cloud_read == pytest.approx(0.004), "ten tokens tell of the forward, not of reading"
