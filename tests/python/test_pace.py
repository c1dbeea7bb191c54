"""How much is drafted while the device is hot, and when it should save power: in virtual time."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import cast

import pytest

from acespec_edge.cli import main
from acespec_edge.control import Controller
from acespec_edge.errors import UsageError
from acespec_edge.policy import POLICIES, Policy, at_power
from acespec_edge.simulate.figures import figures
from acespec_edge.simulate.link import Network
from acespec_edge.simulate.profiles import CloudProfile, EdgeProfile
from acespec_edge.simulate.runner import Setting, simulate
from acespec_edge.simulate.timed_drafter import TimedDrafter
from acespec_edge.simulate.trace import Record
from cloud_stub.simulate import VirtualCloud
from tests.python.control_kit import measured
from tests.python.simulate_kit import trace

EDGE = EdgeProfile("edge", {1: 8.0, 8: 15.0})
TARGET = CloudProfile.affine("cloud", base_ms=50.0, per_node_ms=1.0, prefill_ms=2.0)


class Device:
    """An edge whose forwards take ``factor`` times as long; counts what they hold."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.rows = 0

    def seconds(self, rows: int) -> float:
        self.rows += rows
        return self.factor * EDGE.seconds(rows)


@pytest.mark.parametrize("policy", ["auto", "tree", "chain", "acespec"])
def test_a_hot_device_drafts_less_until_it_has_cooled(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """The same answer over and over: thrice at full pace, thrice at half of it, and at full pace again."""
    factors = [1.0] * 3 + [2.0] * 3 + [1.0] * 3
    device, grown = Device(), [0]
    recorded = trace(records=1, tokens=100)
    (text,) = recorded.records
    recorded = replace(recorded, records=[replace(text, id=str(number)) for number in range(len(factors))])
    original = TimedDrafter.replay

    def replay(self: TimedDrafter, record: Record) -> None:
        device.factor = factors[int(record.id)]
        grown.append(device.rows)
        original(self, record)

    monkeypatch.setattr(TimedDrafter, "replay", replay)
    setting = Setting(recorded, cast(EdgeProfile, device), TARGET, Network(0.1, 1e6, 1e7), policy)
    stats = [answer.stats for answer in simulate(setting, VirtualCloud).answers]
    grown = [*grown[1:], device.rows]
    rows = [
        (after - before) / one.rounds for one, before, after in zip(stats, grown, grown[1:], strict=False)
    ]
    # The first two of each three still learn.
    cool, hot, again = rows[2::3]
    assert hot < 0.65 * cool
    assert again > 0.9 * cool
    assert stats[5].nodes_per_round < stats[2].nodes_per_round
    assert stats[8].nodes_per_round > 0.9 * stats[2].nodes_per_round


def test_the_budget_follows_four_slow_forwards_and_four_quick_ones() -> None:
    control = measured()
    budget = control.budget()

    def forwards(factor: float) -> None:
        for _ in range(4):
            control.forwarded(8, factor * 0.02)

    forwards(2.0)
    assert control.budget() == pytest.approx(budget / 2, rel=0.15)
    forwards(1.0)
    assert control.budget() == pytest.approx(budget, rel=0.15)


def simulated(power: str, rtt: float, policy: str = "tree") -> tuple[float, float]:
    """Forwards of the edge by token, and tokens a second."""
    recorded = trace(records=2, tokens=100)
    setting = Setting(recorded, EDGE, TARGET, Network(rtt, 1e6, 1e7), policy, power=power)
    found = figures(policy, simulate(setting, VirtualCloud))
    return found.edge_forwards, found.tokens_per_second


@pytest.mark.parametrize("policy", ["auto", "tree", "chain", "acespec"])
def test_saving_power_takes_fewer_forwards_and_little_speed(policy: str) -> None:
    full, rate = simulated("full", 0.02, policy)
    saving, slower = simulated("save", 0.02, policy)
    assert saving < 0.95 * full
    assert slower > 0.85 * rate


def saving(control: Controller) -> Controller:
    control.policy = at_power(control.policy, "save")
    return control


def test_the_faster_the_network_the_less_is_worth_its_energy() -> None:
    """What a token is worth is the time that it takes: with tokens coming fast, only the likeliest nodes are
    worth a forward that nobody would wait for. Without saving, all of them are."""
    frontier = [0.3, 0.2, 0.1, 0.05, 0.02, 0.01]
    now = 8.0  # right after the last verdict
    widths = []
    for tokens in (1, 3, 12):
        free = measured(tokens=tokens)
        assert free.width(frontier, now, drafted=None) > 0
        widths.append(saving(measured(tokens=tokens)).width(frontier, now, drafted=None))
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 0 == widths[-1]


def test_what_the_cloud_waits_for_is_drafted_whatever_the_power() -> None:
    frontier = [0.9, 0.7, 0.5, 0.3]
    for tokens in (1, 3, 12):
        wide = measured(tokens=tokens).width(frontier, 8.0, drafted=0)
        assert saving(measured(tokens=tokens)).width(frontier, 8.0, drafted=0) == wide


def test_the_simulator_compares_powers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "acespec simulate --json --edge jetson-agx-orin-0.5b --rtt 20ms --policy auto --requests 1"
    monkeypatch.setattr(sys, "argv", [*command.split(), "--power", "full,save"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    full, save = json.loads(capsys.readouterr().out)["cells"]
    assert (full["power"], save["power"]) == ("full", "save")
    assert save["policies"][0]["edge_forwards"] < full["policies"][0]["edge_forwards"]


def test_wrong_powers_are_named() -> None:
    assert at_power(POLICIES["auto"], "full") is POLICIES["auto"]
    with pytest.raises(UsageError, match="power is 'low': it must be one of full, save"):
        at_power(POLICIES["auto"], "low")
    for price in (-1.0, float("nan")):
        with pytest.raises(UsageError, match=f"policy made-up: work_price is {price}"):
            Policy("made-up", work_price=price)
