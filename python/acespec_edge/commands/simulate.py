"""`acespec simulate`: policies side by side on recorded models, in virtual time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acespec_edge.commands.bar import fraction_bar
from acespec_edge.errors import UsageError
from acespec_edge.units import bits_per_second, seconds

if TYPE_CHECKING:
    from acespec_edge.simulate.figures import Figures
    from acespec_edge.simulate.trace import Trace

_LISTS = "; commas or repeats make a grid."


def simulate(
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What tools.record_trace wrote; a small one is built in."),
    ] = None,
    edge: Annotated[
        list[str] | None, typer.Option(metavar="PROFILE", help="Name or JSON file" + _LISTS)
    ] = None,
    cloud: Annotated[
        list[str] | None,
        typer.Option(metavar="PROFILE", help="Name, JSON file, or BASE,PER_NODE in ms; may be repeated."),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="ACCEPTANCE[,MS]", help="The cloud has a draft head."),
    ] = None,
    rtt: Annotated[list[str] | None, typer.Option(help="Round trip: 100ms" + _LISTS)] = None,
    up: Annotated[list[str] | None, typer.Option(help="Rate towards the cloud: 1mbit" + _LISTS)] = None,
    down: Annotated[list[str] | None, typer.Option(help="Rate from the cloud: 10mbit" + _LISTS)] = None,
    jitter: Annotated[str, typer.Option(help="Each message is up to this much earlier or later.")] = "0ms",
    clients: Annotated[list[str] | None, typer.Option(help="Edges that share the cloud" + _LISTS)] = None,
    policy: Annotated[list[str] | None, typer.Option(help="All when none is named" + _LISTS)] = None,
    requests: Annotated[int | None, typer.Option(help="Prompts of each client, at most.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Simulate policies on recorded models: the real session, drafter and judge, a virtual clock."""
    from acespec_edge.simulate.runner import policies
    from acespec_edge.simulate.shipped import opened

    loaded = opened(trace)
    grid = _grid(
        edge=_list(edge, "jetson-agx-orin-0.5b"),
        cloud=cloud or ["2xh100-70b"],
        rtt=_list(rtt, "100ms"),
        up=_list(up, "1mbit"),
        down=_list(down, "10mbit"),
        clients=_list(clients, "1"),
    )
    names = _list(policy, ",".join(policies()))
    cells = []
    with fraction_bar("simulating", shown=not as_json) as hear:
        for number, cell in enumerate(grid):

            def advance(name: str, part: float, number: int = number) -> None:
                hear(name, (number + part) / len(grid))

            found = _figures(loaded, cell, head, jitter, names, requests, advance)
            cells.append({**cell, "policies": [asdict(one) for one in found]})
    if as_json:
        about = {"pair": loaded.pair, "temperature": loaded.temperature, "head": head, "cells": cells}
        print(json.dumps(about))
    else:
        print(f"{loaded.drafter} drafts for {loaded.target}, T = {loaded.temperature:g}")
        for shown in cells:
            _print(shown)


def _list(given: list[str] | None, usual: str) -> list[str]:
    return [part.strip() for text in given or [usual] for part in text.split(",")]


def _grid(**axes: list[str]) -> list[dict[str, str]]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _figures(
    trace: Trace,
    cell: dict[str, str],
    head: str | None,
    jitter: str,
    names: list[str],
    requests: int | None,
    advance: Callable[[str, float], None],
) -> list[Figures]:
    from acespec_edge.simulate.figures import figures
    from acespec_edge.simulate.link import Network
    from acespec_edge.simulate.profiles import cloud_profile, edge_profile, head_profile
    from acespec_edge.simulate.runner import CLOUD, Setting, simulate

    if not cell["clients"].isdecimal() or not 1 <= int(cell["clients"]) <= 1000:
        raise UsageError(f"--clients is {cell['clients']!r}: give 1 to 1000")
    if requests is not None and requests < 1:
        raise UsageError(f"--requests is {requests}: give 1 or more")
    edge, cloud = edge_profile(cell["edge"], trace), cloud_profile(cell["cloud"], trace)
    if head is not None:
        cloud = replace(cloud, head=head_profile(head))
    network = Network(
        rtt=seconds(cell["rtt"], "--rtt"),
        up=bits_per_second(cell["up"], "--up"),
        down=bits_per_second(cell["down"], "--down"),
        jitter=seconds(jitter, "--jitter"),
    )

    def run(name: str, alone: float | None) -> Figures:
        setting = Setting(trace, edge, cloud, network, name, int(cell["clients"]), requests)
        return figures(name, simulate(setting), alone)

    def in_turn() -> Iterator[Figures]:
        base = run(CLOUD, None)
        if CLOUD in names:
            yield base
        for name in names:
            if name != CLOUD:
                yield run(name, base.tokens_per_second)

    found = []
    for one in in_turn():
        found.append(one)
        advance(one.policy, len(found) / len(names))
    return found


def _print(cell: dict[str, Any]) -> None:
    clients = "one client" if cell["clients"] == "1" else f"{cell['clients']} clients"
    print(
        f"\n{cell['edge']} to {cell['cloud']}, RTT {cell['rtt']}, up {cell['up']}, down {cell['down']}, "
        f"{clients}"
    )
    print(
        f"{'policy':<18}{'tokens/s':>9}{'speed-up':>9}{'TTFT ms':>9}{'accepted':>9}{'hits':>7}"
        f"{'B up':>7}{'B down':>7}{'edge fw':>9}{'cloud fw':>9}{'busy':>7}"
    )
    for row in cell["policies"]:
        print(
            f"{row['policy']:<18}{row['tokens_per_second']:>9.2f}{row['speedup']:>9.2f}"
            f"{row['ttft_ms']:>9.0f}{row['accepted']:>9.2f}{row['hit_rate']:>7.2f}{row['bytes_up']:>7.1f}"
            f"{row['bytes_down']:>7.1f}{row['edge_forwards']:>9.2f}{row['cloud_forwards']:>9.2f}"
            f"{row['cloud_busy']:>7.2f}"
        )
