"""When a silent peer is pinged, and when it counts as lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec_edge.heartbeat import Heartbeat


def measured(round_trip: float, count: int = 40) -> Heartbeat:
    """A heartbeat that has had ``count`` answers, one a second, the last at ``count`` seconds."""
    heartbeat = Heartbeat(0.0)
    for second in range(count):
        heartbeat.asked(second + 1 - round_trip, 0)
        heartbeat.answered(round_trip)
    return heartbeat


def test_w2_silence_after_a_ping_is_noticed_within_the_bound() -> None:
    heartbeat = measured(0.05)
    assert heartbeat.bound == 1.0
    assert heartbeat.lost_at() is None
    assert heartbeat.ping_at(attended=True) == pytest.approx(40.5)
    heartbeat.asked(41.0, 0)
    assert heartbeat.ping_at(attended=True) is None
    assert heartbeat.lost_at() == pytest.approx(42.0)


def test_a_long_round_trip_is_waited_for_twice() -> None:
    heartbeat = measured(0.8)
    assert heartbeat.bound == pytest.approx(1.6, rel=0.05)


def test_before_anything_is_measured_the_bound_is_generous_and_the_first_ping_leaves_at_once() -> None:
    heartbeat = Heartbeat(7.0)
    assert heartbeat.ping_at(attended=False) == 7.0
    heartbeat.asked(7.0, 0)
    assert heartbeat.lost_at() == 10.0


def test_any_message_is_a_sign_of_life() -> None:
    heartbeat = measured(0.05)
    heartbeat.asked(41.0, 0)
    heartbeat.heard(41.9)
    assert heartbeat.lost_at() == pytest.approx(42.9)


def test_an_idle_link_is_pinged_less() -> None:
    assert measured(0.05).ping_at(attended=False) == pytest.approx(45.0)


def test_what_was_sent_before_a_ping_gets_its_time_once() -> None:
    """A prompt of 400 kB goes up for a hundred seconds at the slowest rate; its answer clears the account."""
    heartbeat = measured(0.05)
    heartbeat.asked(41.0, 400_000)
    assert heartbeat.lost_at() == pytest.approx(142.0)
    heartbeat.answered(60.0)
    heartbeat.asked(102.0, 400_400)
    assert heartbeat.lost_at() == pytest.approx(102.1 + heartbeat.bound)


@given(
    round_trips=st.lists(st.floats(0.001, 3.0), min_size=1, max_size=40),
    silence=st.floats(0.0, 100.0),
)
def test_a_lost_peer_is_always_found_and_an_answering_one_never(
    round_trips: list[float], silence: float
) -> None:
    heartbeat, now = Heartbeat(0.0), 0.0
    for round_trip in round_trips:
        ping_at = heartbeat.ping_at(attended=True)
        assert ping_at is not None
        now = max(now, ping_at)
        heartbeat.asked(now, 0)
        lost_at = heartbeat.lost_at()
        assert lost_at is not None
        assert lost_at >= now + 1.0
        if round_trip > lost_at - now:
            return  # a jump beyond the bound: it is lost, and that is right
        heartbeat.answered(round_trip)
        now += round_trip
    ping_at = heartbeat.ping_at(attended=True)
    assert ping_at is not None
    asked = max(ping_at, now) + silence
    heartbeat.asked(asked, 0)
    assert heartbeat.lost_at() == pytest.approx(asked + heartbeat.bound)
    assert 1.0 <= heartbeat.bound <= 2 * max(round_trips) + 1.0
