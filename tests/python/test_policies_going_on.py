"""A cloud that goes on while it waits, with a head or without: what it is worth, on recorded models.

All that is timed here is in the simulator's virtual time.
"""

from __future__ import annotations

import dataclasses
import functools
import random

import pytest

from acespec_edge.session import EdgeSession
from acespec_edge.simulate.link import Network
from acespec_edge.simulate.profiles import CloudProfile, HeadProfile
from acespec_edge.simulate.runner import CLOUD, Outcome, Setting, simulate
from acespec_edge.simulate.trace import Trace
from cloud_stub.simulate import VirtualCloud
from tests.python.test_policies import EDGE, rate, recorded

pytestmark = pytest.mark.native

Cell = tuple[float, float, float]
"""Milliseconds: base and node of a verification, round trip."""

CELLS: list[Cell] = [(150, 1, 20), (150, 1, 250), (72, 0.7, 100), (500, 50, 100)]


@functools.cache
def worse(wrong: float) -> Trace:
    """At a share of the places the drafter thinks of everything but the target's token."""
    trace, records = recorded(), []
    for record in trace.records:
        draw, top = random.Random(record.seed), record.top.copy()
        for place, token in enumerate(record.text):
            if draw.random() < wrong:
                others = [other for other in top[place] if other != token]
                top[place] = (others + [(token + 1 + n) % trace.vocabulary for n in range(8)])[
                    : len(top[place])
                ]
        records.append(dataclasses.replace(record, top=top))
    return dataclasses.replace(trace, records=records)


@functools.cache
def run(policy: str, cell: Cell, *, head: float | None = None, wrong: float = 0.0) -> Outcome:
    base, node, rtt = cell
    cloud = CloudProfile.affine("cloud", base_ms=base, per_node_ms=node, prefill_ms=0.5)
    if head is not None:
        cloud = dataclasses.replace(cloud, head=HeadProfile(head, block_ms=5.0))
    setting = Setting(worse(wrong), EDGE, cloud, Network(rtt / 1e3, 1e6, 1e7), policy, requests=4)
    return simulate(setting, VirtualCloud)


@pytest.mark.parametrize("policy", [CLOUD, "auto", "going-on", "hinted", "in-flight"])
@pytest.mark.parametrize("head", [0.0, 0.7, 1.0])
def test_whatever_the_head_guesses_the_text_is_the_targets(policy: str, head: float) -> None:
    """The simulator itself refuses any other."""
    outcome = run(policy, (72, 0.7, 100), head=head)
    assert [answer.tokens for answer in outcome.answers] == [record.text for record in recorded().records[:4]]


@pytest.mark.parametrize("wrong", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("cell", CELLS)
def test_auto_is_never_slower_than_the_target_alone(cell: Cell, wrong: float) -> None:
    """Some hundred tokens with a drafter that nobody knows."""
    assert rate(run("auto", cell, wrong=wrong)) >= 0.98 * rate(run(CLOUD, cell))


@pytest.mark.parametrize("cell", CELLS)
def test_a_cloud_that_goes_on_throughout_is_never_slower_than_one_left_alone(cell: Cell) -> None:
    for wrong in (0.0, 0.6, 1.0):
        assert rate(run("going-on", cell, wrong=wrong)) >= 0.98 * rate(run(CLOUD, cell))


def test_going_on_pays_where_the_network_is_far() -> None:
    cell = (72, 0.7, 250)
    assert rate(run("going-on", cell)) > 1.1 * rate(run("in-flight", cell))
    assert rate(run("auto", cell)) > 1.1 * rate(run("in-flight", cell))


@pytest.mark.parametrize("cell", CELLS[:3])
def test_a_head_makes_a_cloud_faster_and_auto_beside_it_is_faster_still(cell: Cell) -> None:
    alone, headed = rate(run(CLOUD, cell)), rate(run(CLOUD, cell, head=0.7))
    assert headed > 1.5 * alone
    assert rate(run("auto", cell, head=0.7)) >= 0.97 * max(headed, rate(run("auto", cell)))


@pytest.mark.parametrize("policy", [CLOUD, "auto"])
def test_a_head_of_no_use_costs_next_to_nothing(policy: str) -> None:
    cell = (72, 0.7, 100)
    assert rate(run(policy, cell, head=0.0)) >= 0.95 * rate(run(policy, cell))


def test_a_hint_is_sent_where_a_verdict_missed_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = (150, 1, 20)
    chosen = [answer.stats.chosen for answer in run("hinted", cell, head=0.8, wrong=0.3).answers]
    assert all(0 < one["hint"] < one["tree"] + one["hint"] for one in chosen)
    assert rate(run("hinted", cell, head=0.8, wrong=0.3)) > 1.1 * rate(run("tree", cell, wrong=0.3))


def test_a_cloud_without_a_head_is_not_asked_for_hints_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    draft = EdgeSession.draft

    def recorded_draft(session: EdgeSession, *given: object, **more: object) -> bytes:
        asked.append(more["wants_hint"])
        return draft(session, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(EdgeSession, "draft", recorded_draft)
    run.__wrapped__("auto", (150, 1, 20))
    assert len(asked) > 50 and sum(map(bool, asked)) <= 20 and not any(asked[-20:])
