"""The policy room from Python: names, units and errors, and what holds for any input."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec_edge import _core

amounts = st.floats(0, 1e4, allow_subnormal=False)
shares = st.just(0.0) | st.floats(1e-9, 1)


def falling(values: list[float]) -> list[float]:
    return sorted(values, reverse=True)


@given(
    st.lists(st.tuples(amounts, amounts), max_size=60),
    amounts,
    amounts,
    st.floats(0.1, 64),
    st.floats(0.1, 64),
)
def test_an_affine_cost_stays_a_cost(
    samples: list[tuple[float, float]], base: float, per_unit: float, weight: float, size: float
) -> None:
    cost = _core.AffineCost(base, per_unit, weight, size)
    assert cost(3) == pytest.approx(base + 3 * per_unit)
    for n, seconds in samples:
        cost.observe(n, seconds)
        assert cost.base >= 0 and cost.per_unit >= 0 and cost.deviation >= 0
        assert math.isfinite(cost(1e4))
    assert cost.samples == len(samples)


@given(st.lists(st.tuples(st.integers(1, 12), st.floats(1e-6, 1e3)), max_size=60), st.floats(1e-6, 1e3))
def test_a_width_curve_rises_and_inverts(samples: list[tuple[int, float]], seconds: float) -> None:
    curve = _core.WidthCurve(12, 0.05)
    for width, sample in samples:
        curve.observe(width, sample)
    times = [curve.seconds(width) for width in range(1, curve.max_width + 1)]
    assert times == sorted(times) and times[0] > 0
    assert curve.widest_within(seconds) == sum(time <= seconds for time in times)
    for width in (1, 5, 12):
        nodes = curve.nodes_within(seconds, width)
        assert nodes == 2**20 or nodes >= width * int(seconds / times[width - 1])


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10_000), st.integers(0, 10_000), st.floats(0, 1e3), st.floats(0, 60), st.booleans()
        ),
        max_size=60,
    )
)
def test_a_link_estimate_stays_a_link(exchanges: list[tuple[int, int, float, float, bool]]) -> None:
    link = _core.LinkEstimate()
    trip = _core.RoundTrip()
    at = most = 0.0
    for up, down, seconds, pause, rough in exchanges:
        at += pause
        link.observe(up, down, seconds, at, rough=rough)
        trip.observe(seconds, at, rough=rough)
        assert link.round_trip(0, 0) == pytest.approx(link.rtt)
        assert link.rtt >= 0 and link.deviation >= 0 and link.rtt99 >= link.rtt
        assert link.round_trip(500, 500) <= link.round_trip(501, 501)
        assert 0 < link.up_bps <= 1e12 and 0 < link.down_bps <= 1e12
        most = max(most, seconds)
        assert trip.least(at) <= max(most, trip.seconds)
        assert link.least_rtt(at) <= seconds or rough
    assert link.known == trip.known == bool(exchanges)


def test_before_anything_is_measured_the_network_is_the_papers() -> None:
    link = _core.LinkEstimate()
    assert not link.known
    assert (link.rtt, link.up_bps, link.down_bps) == (0.15, pytest.approx(50e3), pytest.approx(50e3))


@given(st.lists(st.tuples(st.integers(0, 6), shares, shares, st.booleans()), max_size=200), shares, shares)
def test_a_calibration_gives_probabilities(
    verdicts: list[tuple[int, float, float, bool]], confidence: float, prior: float
) -> None:
    calibration = _core.Calibration(0.7)
    assert calibration.probability(0, confidence, prior) == pytest.approx(prior)
    for rank, sure, before, taken in verdicts:
        calibration.observe(rank, sure, before, taken)
    for rank in range(5):
        low = calibration.probability(rank, confidence, prior * 0.5)
        assert 0 <= low <= calibration.probability(rank, confidence, prior) <= 1
    table = calibration.table()
    assert sum(cell.samples for cell in table) == len(verdicts)
    assert sum(cell.taken for cell in table) == sum(taken for *_, taken in verdicts)
    assert all(cell.from_confidence < cell.to_confidence and 0 <= cell.mean_prior <= 1 for cell in table)
    assert {cell.rank for cell in table} == {0, 1, 2, 3}


def test_scores_become_confidences_and_priors() -> None:
    confidences, priors = _core.Calibration(0.5).assess([2.0, 1.0])
    assert confidences == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))])
    assert priors == pytest.approx([1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))])


def hit(given_: list[int], stops: list[float], coverage: list[list[float]]) -> float:
    return sum(
        stop * (curve[min(b, len(curve)) - 1] if b else 0.0)
        for b, stop, curve in zip(given_, stops, coverage, strict=True)
    )


@given(st.lists(shares, min_size=1, max_size=3), st.integers(0, 6), st.floats(0.2, 2))
@settings(max_examples=60)
def test_no_allocation_beats_the_optimal_arms(acceptances: list[float], budget: int, exponent: float) -> None:
    stops = _core.stop_probabilities(acceptances)
    assert sum(stops) == pytest.approx(1)
    costs = [2.0] * len(stops)
    curve = [1 - (1 + b) ** -exponent for b in range(1, budget + 1)]
    coverage = [curve] * len(stops)
    best = max(
        hit(list(counts), stops, coverage)
        for counts in itertools.product(range(budget + 1), repeat=len(stops))
        if sum(counts) <= budget
    )
    for found in (
        _core.allocate_nonuniform(stops, costs, 2.0 * budget, exponent),
        _core.allocate_measured(stops, coverage, costs, 2.0 * budget),
    ):
        assert sum(found) <= budget
        assert hit(found, stops, coverage) == pytest.approx(best)
    assert sum(_core.allocate_uniform(len(acceptances), budget)) == budget
    assert _core.allocate_single(len(acceptances)) == [0] * len(stops)


@given(st.lists(shares, min_size=1, max_size=8), st.floats(1e-3, 1), st.floats(0, 0.1), st.integers(1, 8))
def test_no_length_beats_the_best(
    acceptances: list[float], round_: float, per_token: float, most: int
) -> None:
    prefix = list(itertools.accumulate(acceptances, lambda a, b: a * b))
    longest = min(most, len(prefix))

    def rate(length: int) -> float:
        return (1 + sum(prefix[:length])) / (round_ + per_token * length)

    length = _core.best_length(prefix, round_, per_token, longest)
    assert 1 <= length <= longest
    assert rate(length) >= max(map(rate, range(1, longest + 1))) * (1 - 1e-9)


@given(st.lists(shares, max_size=40).map(falling), st.floats(1e-3, 1), st.just(0.0) | st.floats(1e-9, 0.1))
def test_no_count_beats_the_best_ratio(weights: list[float], round_: float, node: float) -> None:
    prices = _core.Prices(round=round_, node=node)
    best = _core.best_ratio(weights, prices)
    assert best.rate == pytest.approx(_core.expected_rate(weights, best.count, prices))
    for count in range(len(weights) + 1):
        assert best.rate >= _core.expected_rate(weights, count, prices) * (1 - 1e-9)
    kept = _core.best_count(weights, prices, best.rate)
    assert all(w >= best.rate * node * (1 - 1e-6) for w in weights[:kept])
    assert all(w < best.rate * node * (1 + 1e-6) for w in weights[kept:])


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: _core.AffineCost(0.1, -1, 1, 1), "per_unit is -1"),
        (lambda: _core.AffineCost(0.1, 0, 1, 1).observe(1, math.nan), "seconds is nan"),
        (lambda: _core.WidthCurve(0, 0.1), "max_width is 0"),
        (lambda: _core.WidthCurve(4, 0.1).observe(5, 0.1), "width is 5"),
        (lambda: _core.RoundTrip().observe(math.inf, 0), "seconds is inf"),
        (lambda: _core.LinkEstimate().observe(-1, 0, 0.1, 0), "bytes_up is -1"),
        (lambda: _core.Calibration(0.7).probability(0, 2, 0.5), "confidence is 2"),
        (lambda: _core.stop_probabilities([1.5]), "acceptance is 1.5"),
        (lambda: _core.allocate_nonuniform([1], [0], 4, 1), "cost is 0"),
        (lambda: _core.allocate_measured([1], [[0.5, 0.25]], [1], 4), "coverage is 0.25"),
        (lambda: _core.best_length([], 1, 0, 4), "prefix is empty"),
        (lambda: _core.best_count([0.5], _core.Prices(round=1, node=1), 0), "rate is 0"),
        (lambda: _core.best_ratio([0.5, 0.6], _core.Prices(round=1, node=1)), "weight is 0.6"),
    ],
)
def test_errors_name_the_field_and_the_value(call: Callable[[], object], names: str) -> None:
    with pytest.raises(_core.UsageError, match=names):
        call()
