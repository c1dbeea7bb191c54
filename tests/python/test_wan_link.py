"""The arithmetic of an emulated link, without a clock."""

from __future__ import annotations

import pytest

from acespec_edge.units import bits_per_second, seconds
from acespec_edge.wan_link import SEGMENT, LinkModel, Outage, parse_outages


def link(
    rate: float | None = 8000.0,
    delay: float = 0.0,
    jitter: float = 0.0,
    outages: tuple[Outage, ...] = (),
    *,
    queue_bytes: int = 4000,
    packet_overhead: int = 0,
    seed: int = 0,
) -> LinkModel:
    """1,000 bytes a second unless told otherwise."""
    return LinkModel(
        rate, delay, jitter, outages, queue_bytes=queue_bytes, packet_overhead=packet_overhead, seed=seed
    )


def test_a_packet_takes_its_serialisation_and_the_delay() -> None:
    assert link(delay=0.25).send(10.0, 500) == pytest.approx(10.75)


def test_packets_queue_behind_each_other_and_an_idle_link_starts_anew() -> None:
    way = link()
    assert [way.send(0.0, 1000), way.send(0.0, 1000), way.send(5.0, 1000)] == pytest.approx([1.0, 2.0, 6.0])


def test_each_segment_carries_its_headers() -> None:
    way = link(packet_overhead=40)
    assert way.send(0.0, 1) == pytest.approx(0.041)
    assert way.send(10.0, SEGMENT + 1) == pytest.approx(10.0 + (SEGMENT + 1 + 80) / 1000)


def test_late_calls_do_not_add_up() -> None:
    way = link()
    arrivals = [way.send(number + 0.9, 1000) for number in range(50)]
    assert arrivals == pytest.approx([number + 1.9 for number in range(50)])


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        (0.0, 1.0),  # through before the outage
        (1.5, 4.5),  # half before it, half after
        (2.5, 5.0),  # sent into it
        (4.0, 5.0),  # at its very end
    ],
)
def test_an_outage_pauses_the_sending(sent: float, arrives: float) -> None:
    assert link(outages=(Outage(2.0, 4.0),)).send(sent, 1000) == pytest.approx(arrives)


def test_an_outage_holds_what_is_under_way() -> None:
    assert link(None, 1.0, outages=(Outage(2.0, 4.0),)).send(1.5, 1000) == pytest.approx(4.0)


def test_a_full_queue_has_room_when_enough_was_serialised() -> None:
    way = link(queue_bytes=2000)
    for _ in range(3):
        way.send(0.0, 1000)
    assert way.room_at(0.5) == pytest.approx(2.0)
    assert way.room_at(2.5) == 2.5


def test_jitter_is_within_bounds_and_repeats_with_its_seed() -> None:
    arrivals = [[link(None, 0.1, 0.02, seed=seed).send(0.0, 1) for seed in range(200)] for _ in range(2)]
    assert arrivals[0] == arrivals[1]
    assert 0.08 <= min(arrivals[0]) < 0.085
    assert 0.115 < max(arrivals[0]) <= 0.12


def test_jitter_never_makes_a_packet_arrive_before_it_is_sent() -> None:
    assert min(link(None, 0.01, 0.5, seed=seed).send(3.0, 1) for seed in range(50)) == 3.0


def test_units() -> None:
    assert [seconds(text, "x") for text in ("100ms", "0.1s", " 250 US", "2e-3s")] == [0.1, 0.1, 250e-6, 2e-3]
    assert seconds(1.5, "x") == 1.5
    assert [bits_per_second(text, "x") for text in ("50kbit", "1.5Mbit", "8bit")] == [50e3, 1.5e6, 8]
    assert bits_per_second("unlimited", "x") is None and bits_per_second(None, "x") is None


def test_outages_are_read_in_any_order() -> None:
    assert parse_outages("20s:500ms:cut, 5s:2s") == (Outage(5, 7), Outage(20, 20.5, cut=True))
