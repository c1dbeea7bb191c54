"""The two kinds of plot, by matplotlib, without its windows."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tools.bench.plot_data import Series

_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#000000", "#999999")
"""Told apart by colour-blind readers too, and in grey by the markers and strokes beside them (Okabe and Ito,
"Color Universal Design", 2008)."""

_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
_STROKES: Final = ("-", "--", ":", "-.")
_DPI: Final = 150


def bars(series: Series, path: Path) -> None:
    """Horizontal bars, a group for each category, a colour for each line of the legend. Writes a PNG."""
    groups = list(dict.fromkeys(name for points in series.lines.values() for name, _ in points))
    thickness = 0.8 / len(series.lines)
    figure, axes = _axes(7.5, 1.2 + max(len(groups), 2) * (0.18 + 0.17 * len(series.lines)))
    for number, (label, points) in enumerate(series.lines.items()):
        heights = dict(points)
        shown = [place for place, name in enumerate(groups) if name in heights]
        drawn = axes.barh(
            [place + (number + 0.5) * thickness - 0.4 for place in shown],
            [heights[groups[place]] for place in shown],
            height=0.9 * thickness,
            color=_COLOURS[number % len(_COLOURS)],
            label=label,
        )
        axes.bar_label(drawn, fmt="%.1f", padding=2, fontsize=7)
    axes.margins(y=0.01)
    axes.set_yticks(range(len(groups)), groups)
    axes.invert_yaxis()
    axes.grid(axis="x", color="0.9")
    _finish(figure, axes, series, path)


def lines(series: Series, path: Path) -> None:
    """A line for each line of the legend. Writes a PNG."""
    figure, axes = _axes(7.5, 4.0)
    for number, (label, points) in enumerate(series.lines.items()):
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=_COLOURS[number % len(_COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            linestyle=_STROKES[number // len(_COLOURS) % len(_STROKES)],
            label=label,
        )
    if series.log_x:
        axes.set_xscale("log")
        places = sorted({x for points in series.lines.values() for x, _ in points})
        axes.set_xticks(places, [f"{x:g}" for x in places])
        axes.minorticks_off()
    if series.share:
        axes.set_ylim(0, 1)
    else:
        axes.set_ylim(bottom=0)
    axes.grid(color="0.9")
    _finish(figure, axes, series, path)


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _finish(figure: Figure, axes: Axes, series: Series, path: Path) -> None:
    axes.set_title(series.title, loc="left", fontsize=10)
    axes.set_xlabel(series.x)
    axes.set_ylabel(series.y)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    figure.savefig(path, dpi=_DPI)
