"""The policy room from Python: names, units and errors, and what holds for any input."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec_edge import _core

shares = st.just(0.0) | st.floats(1e-9, 1)


def falling(values: list[float]) -> list[float]:
    return sorted(values, reverse=True)


@given(st.lists(st.tuples(st.integers(1, 12), st.floats(1e-6, 1e3)), max_size=60), st.floats(1e-6, 1e3))
def test_a_width_curve_rises_and_inverts(samples: list[tuple[int, float]], seconds: float) -> None:
    curve = _core.WidthCurve(12, 0.05, 0.125)
    for width, sample in samples:
        curve.observe(width, sample)
    times = [curve.seconds(width) for width in range(1, 13)]
    assert times == curve.table()
    assert times == sorted(times) and times[0] > 0
    for width in (1, 5, 12):
        nodes = curve.nodes_within(seconds, width)
        assert nodes == 2**20 or nodes >= width * int(seconds / times[width - 1])
    fits = sum(time <= seconds for time in times)
    assert curve.nodes_within(seconds, 12) >= 12 or curve.nodes_within(seconds, 12) == fits


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
    at = 0.0
    for up, down, seconds, pause, rough in exchanges:
        at += pause
        link.observe(up, down, seconds, at, rough=rough)
        trip.observe(seconds, at, rough=rough)
        assert link.round_trip(0, 0) == pytest.approx(link.rtt)
        assert link.rtt >= 0 and link.deviation >= 0
        assert trip.quantile99 >= trip.seconds
        assert link.round_trip(500, 500) <= link.round_trip(501, 501)
        assert 0 < link.up_bps <= 1e12 and 0 < link.down_bps <= 1e12
    assert link.known == trip.known == bool(exchanges)


def test_before_anything_is_measured_the_network_is_the_papers() -> None:
    link = _core.LinkEstimate()
    assert not link.known
    assert (link.rtt, link.up_bps, link.down_bps) == (0.15, pytest.approx(50e3), pytest.approx(50e3))


def hit(given_: list[int], stops: list[float], coverage: list[float]) -> float:
    return sum(stop * (coverage[b - 1] if b else 0.0) for b, stop in zip(given_, stops, strict=True))


@given(st.lists(shares, min_size=1, max_size=3), st.integers(0, 6), st.floats(0.2, 2))
@settings(max_examples=60)
def test_no_allocation_beats_the_closed_form(acceptances: list[float], budget: int, exponent: float) -> None:
    stops = _core.stop_probabilities(acceptances)
    assert sum(stops) == pytest.approx(1)
    costs = [2.0] * len(stops)
    curve = [1 - (1 + b) ** -exponent for b in range(1, budget + 1)]
    best = max(
        hit(list(counts), stops, curve)
        for counts in itertools.product(range(budget + 1), repeat=len(stops))
        if sum(counts) <= budget
    )
    found = _core.allocate_nonuniform(stops, costs, 2.0 * budget, exponent)
    assert sum(found) <= budget
    assert hit(found, stops, curve) == pytest.approx(best)
    assert sum(_core.allocate_uniform(len(acceptances), budget)) == budget


@given(st.lists(shares, min_size=1, max_size=8), st.lists(st.floats(1e-3, 1), min_size=9, max_size=9))
def test_no_length_beats_the_best(acceptances: list[float], steps: list[float]) -> None:
    prefix = list(itertools.accumulate(acceptances, lambda a, b: a * b))
    rounds, longest = list(itertools.accumulate(steps)), len(prefix)

    def rate(length: int) -> float:
        return (1 + sum(prefix[:length])) / rounds[length]

    length = _core.best_length(prefix, rounds, longest)
    assert 1 <= length <= longest
    assert rate(length) >= max(map(rate, range(1, longest + 1))) * (1 - 1e-9)


@given(
    st.lists(shares, max_size=40).map(falling),
    st.lists(st.just(0.0) | st.floats(1e-9, 0.1), min_size=41, max_size=41),
    st.floats(1e-3, 1e3),
)
def test_the_nodes_that_are_worth_their_price(weights: list[float], steps: list[float], rate: float) -> None:
    seconds = list(itertools.accumulate(steps))
    kept = _core.best_count(weights, seconds, rate)

    def gain(count: int) -> float:
        return sum(weights[:count]) - rate * (seconds[count] - seconds[0])

    assert gain(kept) == pytest.approx(max(map(gain, range(len(weights) + 1))), abs=1e-4)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: _core.WidthCurve(0, 0.1, 0.1), "max_width is 0"),
        (lambda: _core.WidthCurve(4, 0.1, 0.1).observe(5, 0.1), "width is 5"),
        (lambda: _core.RoundTrip().observe(math.inf, 0), "seconds is inf"),
        (lambda: _core.LinkEstimate().observe(-1, 0, 0.1, 0), "bytes_up is -1"),
        (lambda: _core.stop_probabilities([1.5]), "acceptance is 1.5"),
        (lambda: _core.allocate_nonuniform([1], [0], 4, 1), "cost is 0"),
        (lambda: _core.best_length([], [1] * 5, 4), "prefix is empty"),
        (lambda: _core.best_length([1], [1, 2, 1], 2), "seconds is 1"),
        (lambda: _core.best_count([0.5], [1, 2], 0), "rate is 0"),
        (lambda: _core.best_count([0.5, 0.6], [1, 2, 3], 1), "weight is 0.6"),
        (lambda: _core.best_count([0.5, 0.4], [1, 2], 1), "seconds holds 2 values"),
    ],
)
def test_errors_name_the_field_and_the_value(call: Callable[[], object], names: str) -> None:
    with pytest.raises(_core.UsageError, match=names):
        call()
