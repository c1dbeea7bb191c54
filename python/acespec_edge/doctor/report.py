"""All findings together, and what they come to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from acespec_edge import __version__
from acespec_edge.doctor.cloud import Network, Target
from acespec_edge.doctor.draft_bundle import Pace
from acespec_edge.doctor.finding import Finding
from acespec_edge.simulate.link import Network as PlannedNetwork
from acespec_edge.simulate.plan import plan
from acespec_edge.simulate.profiles import CloudProfile, EdgeProfile

Verdict = Literal["ready", "slow", "cannot"]

ACCEPTANCES: Final = {"chat": 0.6, "code": 0.8}
"""Shares of drafted tokens that targets usually take of a drafter of their family."""

_WORTH_IT: Final = 1.1


@dataclass(frozen=True, slots=True)
class Report:
    """What `acespec doctor` says. ``speedups``: over the cloud alone, by kind of text; empty when they could
    not be reckoned."""

    findings: list[Finding]
    verdict: Verdict
    sentence: str
    speedups: dict[str, float]

    @property
    def advice(self) -> list[str]:
        """What to do, the most pressing first."""
        order = {"bad": 0, "slow": 1, "ok": 2}
        ranked = sorted(self.findings, key=lambda finding: order[finding.status])
        return [f"{finding.name}: {finding.advice}" for finding in ranked if finding.advice]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; the names are a contract."""
        return {
            "version": __version__,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "speedups": self.speedups,
            "advice": self.advice,
            "findings": [finding.to_dict() for finding in self.findings],
        }


def conclude(
    findings: Sequence[Finding], pace: Pace | None, network: Network | None, target: Target | None
) -> Report:
    """The verdict on what was found."""
    found = list(findings)
    bad = next((finding for finding in found if finding.status == "bad"), None)
    if bad is not None:
        # The rest stands in the finding's own line.
        reason = re.split(r"[:;.]\s", bad.words, maxsplit=1)[0]
        return Report(found, "cannot", f"cannot run: {bad.name}: {reason}", {})
    slow = [finding.name for finding in found if finding.status == "slow"]
    if pace is None or network is None or target is None:
        more = ("--bundle and --cloud" if pace is None else "--cloud") + " tell more"
        if target is not None:  # so there is a bundle, without a model
            more = "what lookup yields depends on the text"
        if slow:
            return Report(found, "slow", f"will run, slowly: see {', '.join(slow)}; {more}", {})
        return Report(found, "ready", f"ready, as far as this device goes; {more}", {})
    speedups = expected(pace, network, target)
    low, high = min(speedups.values()), max(speedups.values())
    fit = f"expect {speedups['code']:.1f}x cloud-only on code, {speedups['chat']:.1f}x on chat"
    if high < _WORTH_IT:
        reason = "this target alone is as fast over this network, and drafting adds nothing"
        return Report(found, "slow", f"will run, slowly: {reason}", speedups)
    if slow:
        return Report(found, "slow", f"will run, slowly: see {', '.join(slow)}; {fit}", speedups)
    word = "good fit" if low >= _WORTH_IT else "ready"
    return Report(found, "ready", f"{word}: {fit}", speedups)


def expected(pace: Pace, network: Network, target: Target) -> dict[str, float]:
    """Tokens a second over those of the cloud alone, by the plan for chains, not below 1: the policy leaves
    a target alone that is faster so."""
    device = EdgeProfile("this device", {1: pace.one, pace.width: pace.wide})
    tree = max(target.tree, target.plain)
    cloud = CloudProfile("this cloud", {0: 1e3 * target.plain, target.nodes: 1e3 * tree}, prefill_ms=0.0)
    wire = PlannedNetwork(network.round_trip, max(1.0, 8 * network.goodput_up), None)
    return {
        kind: round(max(1.0, plan(device, cloud, wire, acceptance).speedup), 2)
        for kind, acceptance in ACCEPTANCES.items()
    }
