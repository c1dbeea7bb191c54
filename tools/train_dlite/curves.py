"""Loss curves as a picture, by matplotlib, without its windows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

_STAGES: Final = ("teacher: cross-entropy", "warm-up: KL to the teacher", "stable")
_POINTS: Final = 100


def draw_losses(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """A panel for each stage that has steps: the loss over the steps, in means of up to 100 stretches, and
    the validation loss where there is one. Writes a PNG.
    """
    stages = sorted({row["stage"] for row in rows})
    if not stages:
        return
    figure = Figure(figsize=(4.5 * len(stages), 3.2), layout="constrained")
    panels = figure.subplots(1, len(stages), squeeze=False)[0]
    for axes, stage in zip(panels, stages, strict=True):
        here = [row for row in rows if row["stage"] == stage]
        for name, colour in (("loss", "#0072B2"), ("held_out", "#D55E00")):
            points = _means([(row["step"], row[name]) for row in here if name in row])
            if points:
                axes.plot([x for x, _ in points], [y for _, y in points], color=colour, label=name)
        axes.set_title(_STAGES[stage], loc="left", fontsize=9)
        axes.set_xlabel("step")
        axes.grid(color="0.9")
        axes.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=150)


def _means(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    size = -(-len(points) // _POINTS) or 1
    stretches = [points[first : first + size] for first in range(0, len(points), size)]
    return [
        (sum(x for x, _ in stretch) / len(stretch), sum(y for _, y in stretch) / len(stretch))
        for stretch in stretches
    ]
