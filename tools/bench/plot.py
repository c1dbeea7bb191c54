"""Draws the results of tools.bench.paradigms: throughput by paradigm and by bandwidth, the ablation of branch
allocation, hit rates by budget and by temperature. A plot whose data are missing is named and left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acespec_edge.errors import UsageError
from tools.bench import command
from tools.bench.paradigms.report import load
from tools.bench.plot_data import Series, ablation, by_bandwidth, by_paradigm, hit_rates


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws what can be drawn; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.plot", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS.json", help="of any runs")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the PNG files go")
    options = parser.parse_args(arguments)
    return command.run(lambda: _plot(options.results, options.out))


def _plot(results: Sequence[Path], out: Path) -> int:
    documents = [load(path) for path in results]
    try:
        from tools.bench import plot_figures
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'acespec-edge[dev]'") from error
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"out is {str(out)!r}: {error.strerror}") from error
    draw = {
        "throughput-by-paradigm": (by_paradigm, plot_figures.bars),
        "throughput-by-bandwidth": (by_bandwidth, plot_figures.lines),
        "ablation": (ablation, plot_figures.bars),
        "hit-rate-by-budget": (lambda found: hit_rates(found, "budget"), plot_figures.lines),
        "hit-rate-by-temperature": (lambda found: hit_rates(found, "temperature"), plot_figures.lines),
    }
    for setting, group in _by_setting(documents).items():
        for name, (chosen, drawn) in draw.items():
            found: list[Series] = chosen(group)
            if not found:
                print(f"skipped {setting} {name}: these results have no data for it")
            for series in found:
                path = out / f"{setting}-{name}{series.suffix}.png"
                drawn(series, path)
                print(path)
    return 0


def _by_setting(documents: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Documents that may share a plot: those of one pair with one emulated target."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for document in documents:
        base, per_node = document["verify_ms"]
        padded = f"-{base:g}-{per_node:g}ms" if base or per_node else ""
        groups.setdefault(f"{document['pair']}{padded}", []).append(document)
    return groups


if __name__ == "__main__":
    sys.exit(main())
