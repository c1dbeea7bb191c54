"""From runs to the figures of a contender in a cell."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tools.bench.paradigms.compare import Tally
from tools.bench.paradigms.grid import Cell
from tools.bench.paradigms.runs import Run


def rows_of(cell: Cell, tallies: Sequence[Tally]) -> list[dict[str, Any]]:
    """One row a contender, ready for JSON: the medians over repeats of figures over all answers of a repeat.

    Speed-up is over the target alone at the same temperature, repeat by repeat, of which the median.
    """
    alone = {tally.contender.temperature: tally for tally in tallies if tally.contender.paradigm.is_alone}
    return [_row(cell, tally, alone[tally.contender.temperature]) for tally in tallies]


def _row(cell: Cell, tally: Tally, alone: Tally) -> dict[str, Any]:
    contender = tally.contender
    repeats = [runs for runs in tally.repeats if runs]
    row: dict[str, Any] = {
        "paradigm": contender.paradigm.name,
        "label": contender.label,
        "title": contender.paradigm.title,
        "rtt_ms": cell.rtt_ms,
        "up_bps": cell.up_bps,
        "down_bps": cell.down_bps,
        "temperature": contender.temperature,
        "sampling": contender.paradigm.sampling(contender.temperature),
        "budget": contender.budget,
        "answers": sum(map(len, repeats)),
        "tokens": sum(len(run.ids) for runs in repeats for run in runs),
    }
    for name, figure in _FIGURES.items():
        values = [value for runs in repeats if (value := figure(runs)) is not None]
        row[name] = statistics.median(values) if values else None
    ratios = [
        _tokens_per_second(runs) / _tokens_per_second(slow)
        for runs, slow in zip(tally.repeats, alone.repeats, strict=True)
        if len(runs) == len(slow) > 0 and _tokens_per_second(slow) > 0
    ]
    row["speedup"] = statistics.median(ratios) if ratios else None
    return row | {
        "identity": {
            "checked": tally.checked,
            "identical": tally.checked - len(tally.mismatches),
            "must_be": contender.paradigm.repeats_the_target(contender.temperature),
            "differences": [
                {**dataclasses.asdict(mismatch), "tie": mismatch.tie} for mismatch in tally.mismatches
            ],
        },
        "chosen": _chosen([run for runs in repeats for run in runs]),
        "why": next((run.why for runs in reversed(repeats) for run in reversed(runs) if run.why), ""),
        "failure": tally.failure,
    }


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of all do not exceed; None of none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]


def gaps_of(runs: Sequence[Run]) -> list[float]:
    """Seconds from each token shown to the next; those that come together have none between them."""
    return [after - before for run in runs for before, after in zip(run.shown, run.shown[1:], strict=False)]


def _tokens_per_second(runs: Sequence[Run]) -> float:
    """All tokens by all time, the first token's included."""
    return _ratio(sum(len(run.ids) for run in runs), sum(run.seconds for run in runs))


def _gap(share: float) -> Callable[[Sequence[Run]], float | None]:
    def gap(runs: Sequence[Run]) -> float | None:
        found = quantile(gaps_of(runs), share)
        return None if found is None else 1e3 * found

    return gap


def _first_token(runs: Sequence[Run]) -> float | None:
    times = [run.shown[0] for run in runs if run.shown]
    return 1e3 * statistics.median(times) if times else None


def _by_token(amount: Callable[[Run], int]) -> Callable[[Sequence[Run]], float | None]:
    def figure(runs: Sequence[Run]) -> float | None:
        return _ratio(sum(map(amount, runs)), sum(len(run.ids) for run in runs))

    return figure


def _by_round(mean: Callable[[Run], float]) -> Callable[[Sequence[Run]], float | None]:
    """None of runs without a round."""

    def figure(runs: Sequence[Run]) -> float | None:
        rounds = sum(run.rounds for run in runs)
        return sum(mean(run) * run.rounds for run in runs) / rounds if rounds else None

    return figure


def _drafter_forwards(runs: Sequence[Run]) -> float | None:
    counted = [run for run in runs if run.drafter_forwards is not None]
    return _by_token(lambda run: run.drafter_forwards or 0)(counted) if counted else None


_FIGURES: dict[str, Callable[[Sequence[Run]], float | None]] = {
    "tokens_per_second": _tokens_per_second,
    "ttft_ms": _first_token,
    "gap_p50_ms": _gap(0.5),
    "gap_p99_ms": _gap(0.99),
    "up_bytes_per_token": _by_token(lambda run: run.bytes_up),
    "down_bytes_per_token": _by_token(lambda run: run.bytes_down),
    "max_up_bytes": lambda runs: max((run.max_up_bytes for run in runs), default=0),
    "accepted_per_round": _by_round(lambda run: run.accepted),
    "hit_rate": _by_round(lambda run: run.hit_rate),
    "drafter_forwards_per_token": _drafter_forwards,
    "target_forwards_per_token": _by_token(lambda run: run.target_forwards),
}
"""Each of one repeat's runs."""


def _chosen(runs: Sequence[Run]) -> dict[str, float]:
    """Shares of what a policy that chooses chose, over all runs."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.chosen)
    return {name: count / counts.total() for name, count in counts.items()}


def _ratio(amount: float, per: float) -> float:
    return amount / per if per > 0 else 0.0
