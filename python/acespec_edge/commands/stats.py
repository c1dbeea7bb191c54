"""The figures of a request, for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acespec_edge.stats import Stats


def show_stats(stats: Stats) -> None:
    """Every figure on a line of its own, on standard error."""
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in asdict(stats).items():
        table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    Console(stderr=True).print(table)
