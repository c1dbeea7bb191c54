"""`acespec plan`: will speculation pay on this device, this network, with this target?"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acespec_edge.commands.bar import fraction_bar
from acespec_edge.errors import UsageError
from acespec_edge.units import bits_per_second, seconds

if TYPE_CHECKING:
    from acespec_edge.simulate.figures import Figures
    from acespec_edge.simulate.link import Network
    from acespec_edge.simulate.plan import Plan
    from acespec_edge.simulate.profiles import CloudProfile, EdgeProfile
    from acespec_edge.simulate.trace import Trace

_NEAR = 0.98
"""Share of the best policy's rate at which auto, which needs no choice, is what to take."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer. ``bound_by``: the largest part of a chain's round."""

    pays: bool
    policy: str
    tokens_per_second: float
    cloud_tokens_per_second: float
    speedup: float
    draft_length: int
    nodes_ahead: int
    bytes_up_per_token: float
    bytes_down_per_token: float
    bound_by: str


def plan(
    edge: Annotated[
        str, typer.Option(metavar="PROFILE", help="The device and its drafter: a name or JSON file.")
    ] = "jetson-agx-orin-0.5b",
    cloud: Annotated[
        str, typer.Option(metavar="PROFILE", help="The target: a name, JSON file, or BASE,PER_NODE in ms.")
    ] = "2xh100-70b",
    rtt: Annotated[str, typer.Option(help="Round trip: 100ms.")] = "100ms",
    up: Annotated[str, typer.Option(help="Rate towards the cloud: 1mbit.")] = "1mbit",
    down: Annotated[str, typer.Option(help="Rate from the cloud: 10mbit.")] = "10mbit",
    acceptance: Annotated[
        float | None, typer.Option(help="Share of drafted tokens that the target takes; else a trace tells.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Simulate on this recording; a small one is built in."),
    ] = None,
    probe: Annotated[
        str | None, typer.Option(metavar="URL", help="Measure the round trip to this cloud instead.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of sentences.")] = False,
) -> None:
    """Say before deployment whether speculation will pay, by how much, and with which settings."""
    from acespec_edge.simulate.link import Network
    from acespec_edge.simulate.plan import plan as planned
    from acespec_edge.simulate.profiles import cloud_profile, edge_profile
    from acespec_edge.simulate.shipped import opened

    if acceptance is not None and trace is not None:
        raise UsageError("--acceptance and --trace exclude each other: a trace tells the acceptance")
    recorded = None if acceptance is not None else opened(trace)
    device, target = edge_profile(edge, recorded), cloud_profile(cloud, recorded)
    trip = seconds(rtt, "--rtt") if probe is None else _probe(probe)
    network = Network(trip, bits_per_second(up, "--up"), bits_per_second(down, "--down"))
    if recorded is None:
        assert acceptance is not None
        found, runs = planned(device, target, network, acceptance), []
    else:
        found = planned(device, target, network, _acceptance(recorded))
        runs = _simulated(recorded, device, target, network, shown=not as_json)
    advice = _advice(found, runs)
    if as_json:
        parts = {"chain": asdict(found), "simulated": [asdict(one) for one in runs]}
        print(json.dumps(asdict(advice) | {"rtt_ms": 1e3 * trip} | parts))
        return
    print(f"{edge} to {cloud}, RTT {1e3 * trip:.0f} ms, up {up}, down {down}")
    for sentence in _sentences(advice, found, recorded):
        print(sentence)


def _acceptance(trace: Trace) -> float:
    """Share of all tokens that are the drafter's first choice."""
    hits = sum(int((record.top[:, 0] == record.text).sum()) for record in trace.records)
    return hits / sum(len(record.text) for record in trace.records)


def _simulated(
    trace: Trace, edge: EdgeProfile, cloud: CloudProfile, network: Network, *, shown: bool
) -> list[Figures]:
    from acespec_edge.simulate.figures import figures
    from acespec_edge.simulate.runner import CLOUD, Setting, policies, simulate

    names = policies()
    runs: list[Figures] = []
    with fraction_bar("simulating", shown=shown) as hear:
        for name in names:
            outcome = simulate(Setting(trace, edge, cloud, network, name))
            alone = None if name == CLOUD else runs[0].tokens_per_second
            runs.append(figures(name, outcome, alone))
            hear(name, len(runs) / len(names))
    return runs


def _advice(found: Plan, runs: list[Figures]) -> Advice:
    """What to do, simulated where there was a trace."""
    alone = found.cloud_rate
    if found.pays:
        policy, rate, bytes_up, bytes_down = "auto", found.rate, found.bytes_up, found.bytes_down
    else:
        policy, rate, bytes_up, bytes_down = "cloud", alone, 0.0, found.cloud_bytes_down
    if runs:
        best = max(runs, key=lambda one: one.tokens_per_second)
        near = (one for one in runs if one.tokens_per_second >= _NEAR * best.tokens_per_second)
        taken = next((one for one in near if one.policy == "auto"), best)
        policy, rate, alone = taken.policy, taken.tokens_per_second, runs[0].tokens_per_second
        bytes_up, bytes_down = taken.bytes_up, taken.bytes_down
    return Advice(
        pays=rate > alone / _NEAR,
        policy=policy,
        tokens_per_second=rate,
        cloud_tokens_per_second=alone,
        speedup=rate / alone,
        draft_length=found.length,
        nodes_ahead=found.budget,
        bytes_up_per_token=bytes_up,
        bytes_down_per_token=bytes_down,
        bound_by=max(found.seconds, key=lambda part: found.seconds[part]),
    )


def _sentences(advice: Advice, found: Plan, recorded: Trace | None) -> list[str]:
    if advice.pays:
        verdict = (
            f"It pays: {advice.tokens_per_second:.1f} tokens/s expected, {advice.speedup:.2f} times the "
            f"{advice.cloud_tokens_per_second:.1f} of the cloud alone."
        )
    else:
        verdict = (
            f"It does not pay: the cloud alone streams {advice.cloud_tokens_per_second:.1f} tokens/s, and "
            "drafts would add nothing to speak of."
        )
    source = (
        f"for an acceptance of {found.acceptance:.2f}, as given"
        if recorded is None
        else f"simulated on answers of {recorded.target} (acceptance {found.acceptance:.2f})"
    )
    bound, whole = found.seconds[advice.bound_by], sum(found.seconds.values())
    if found.pays:
        reason = f"A round is bound by {advice.bound_by}: {1e3 * bound:.0f} of {1e3 * whole:.0f} ms."
    else:
        reason = (
            f"A chain of {found.length} would bring {found.tokens:.1f} tokens in {1e3 * whole:.0f} ms, of "
            f"which {advice.bound_by} takes {1e3 * bound:.0f}; the cloud alone streams "
            f"{whole * found.cloud_rate:.1f} in that time."
        )
    return [
        verdict,
        f"The figures are {source}; other texts and models have others.",
        f"Take policy {advice.policy}; a fixed chain would be best at {advice.draft_length} tokens, with "
        f"about {advice.nodes_ahead} nodes drafted ahead in the time of a round.",
        f"Each token costs about {advice.bytes_up_per_token:.0f} bytes up and "
        f"{advice.bytes_down_per_token:.0f} down.",
        reason,
    ]


def _probe(url: str) -> float:
    """Seconds of the shortest of some round trips to the cloud at ``url``. Raises LinkError, UsageError."""
    from acespec_edge.address import read_token
    from acespec_edge.simulate.probe import round_trip
    from acespec_edge.transport import connect

    token = read_token(None)
    return round_trip(lambda: connect(url, token=token))
