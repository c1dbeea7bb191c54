"""Pearson's test, with a tail that can be trusted where alarms of one in a million are decided."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import stats

Counts = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]

_LEAST_MEAN: Final = 20.0
"""Cells that expect fewer draws are pooled with the next likely."""


def p_value(counts: Counts, expected: Probabilities) -> float:
    """How likely draws from ``expected`` are to be at least this far from it; 0 when an impossible cell was
    hit. Both of one shape, ``expected`` summing to 1.

    The statistic's exact mean and variance (Haldane: "The exact value of the moments of the distribution of
    chi-square", 1937) fit a gamma distribution: the chi-square distribution is its limit for large cells, and
    lies below the true tail for small ones.
    """
    if counts[expected == 0.0].any():
        return 0.0
    draws = int(counts.sum())
    observed, odds = _pooled(counts.ravel(), expected.ravel(), draws)
    cells = len(odds)
    if cells < 2:
        return 1.0
    statistic = float(((observed - draws * odds) ** 2 / (draws * odds)).sum())
    mean = cells - 1.0
    variance = 2.0 * mean + (float((1.0 / odds).sum()) - cells**2 - 2.0 * cells + 2.0) / draws
    return float(stats.gamma.sf(statistic, mean**2 / variance, scale=variance / mean))


def _pooled(counts: Counts, expected: Probabilities, draws: int) -> tuple[Counts, Probabilities]:
    """Cells by rising expectation, neighbours joined until each expects enough."""
    order = np.argsort(expected, kind="stable")
    counts, expected = counts[order], expected[order] / expected.sum()
    starts, mass = [0], 0.0
    for cell, odds in enumerate(expected):
        if mass * draws >= _LEAST_MEAN:
            starts.append(cell)
            mass = 0.0
        mass += float(odds)
    if mass * draws < _LEAST_MEAN and len(starts) > 1:
        starts.pop()
    return np.add.reduceat(counts, starts), np.add.reduceat(expected, starts)
