"""What the plots show, out of the documents of tools.bench.paradigms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tools.bench.paradigms.grid import rate
from tools.bench.paradigms.paradigms import ABLATION, PARADIGMS

Document = dict[str, Any]
Row = dict[str, Any]

_TOKENS = "tokens per second"


@dataclass(frozen=True)
class Series:
    """One plot. `lines`: by the name in the legend, the points (x, y); x is text where the axis is of
    categories. `suffix`: of the file's name, where a kind has several.
    """

    title: str
    x: str
    y: str
    lines: dict[str, list[tuple[Any, float]]]
    suffix: str = ""
    log_x: bool = False
    share: bool = False


def by_paradigm(documents: Sequence[Document]) -> list[Series]:
    """Tokens per second of every paradigm, by round trip; a plot for each uplink rate."""
    rows = _greedy(documents)
    return [
        _bars([row for row in rows if row["up_bps"] == up], f"Throughput at {rate(up)} up", _suffix(up))
        for up in _sorted(row["up_bps"] for row in rows)
    ]


def ablation(documents: Sequence[Document]) -> list[Series]:
    """The arms of branch allocation, by round trip; a plot for each uplink rate at which two arms ran."""
    rows = [row for row in _greedy(documents) if row["paradigm"] in ABLATION]
    found = []
    for up in _sorted(row["up_bps"] for row in rows):
        here = [row for row in rows if row["up_bps"] == up]
        if len({row["paradigm"] for row in here}) > 1:
            found.append(_bars(here, f"Branch allocation at {rate(up)} up", _suffix(up)))
    return found


def by_bandwidth(documents: Sequence[Document]) -> list[Series]:
    """Tokens per second over the uplink rate, a line for each paradigm; a plot for each round trip with two
    rates.
    """
    rows = _greedy(documents)
    found = []
    for rtt in _sorted(row["rtt_ms"] for row in rows):
        here = [row for row in rows if row["rtt_ms"] == rtt]
        if len({row["up_bps"] for row in here}) < 2:
            continue
        lines: dict[str, list[tuple[Any, float]]] = {}
        for row in sorted(here, key=_place):
            lines.setdefault(row["title"], []).append((row["up_bps"] / 1e3, row["tokens_per_second"]))
        found.append(
            Series(
                f"Throughput at RTT {rtt:g} ms",
                "uplink (kbit/s)",
                _TOKENS,
                {title: sorted(points) for title, points in lines.items()},
                suffix=f"-rtt{rtt:g}",
                log_x=True,
            )
        )
    return found


def hit_rates(documents: Sequence[Document], swept: str) -> list[Series]:
    """Hit rate over what was swept ("budget" or "temperature"), a line for each cell with two values."""
    lines: dict[str, list[tuple[Any, float]]] = {}
    for document in documents:
        if (document["sweep"] or {}).get("name") != swept:
            continue
        for row in document["rows"]:
            if row["paradigm"] != "cloud" and row["hit_rate"] is not None and row[swept] is not None:
                cell = f"RTT {row['rtt_ms']:g} ms, {rate(row['up_bps'])}"
                lines.setdefault(cell, []).append((row[swept], row["hit_rate"]))
    whole = {cell: sorted(points) for cell, points in lines.items() if len(points) > 1}
    if not whole:
        return []
    x = "nodes expanded a round, B" if swept == "budget" else "temperature"
    return [Series(f"Draft hit rate by {swept}", x, "hit rate", whole, share=True)]


def _greedy(documents: Sequence[Document]) -> list[Row]:
    """Rows of plain comparisons with greedy decoding; of the same paradigm and cell the last."""
    found: dict[tuple[Any, ...], Row] = {}
    for document in documents:
        for row in document["rows"] if document["sweep"] is None else ():
            if row["temperature"] == 0 and row["tokens_per_second"] is not None:
                found[row["paradigm"], row["rtt_ms"], row["up_bps"], row["down_bps"]] = row
    return list(found.values())


def _bars(rows: Sequence[Row], title: str, suffix: str) -> Series:
    lines: dict[str, list[tuple[Any, float]]] = {}
    for row in sorted(rows, key=lambda row: (row["rtt_ms"], _place(row))):
        lines.setdefault(f"RTT {row['rtt_ms']:g} ms", []).append((row["title"], row["tokens_per_second"]))
    return Series(title, _TOKENS, "", lines, suffix=suffix)


def _place(row: Row) -> int:
    names = list(PARADIGMS)
    return names.index(row["paradigm"]) if row["paradigm"] in names else len(names)


def _suffix(up: float) -> str:
    amount, unit = rate(up).split()
    return f"-{amount}{unit[0].lower()}"


def _sorted(values: Iterable[float]) -> list[float]:
    return sorted(set(values))
