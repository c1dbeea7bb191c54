"""Progress bars on the terminal: one line that ends when the work does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)


@contextmanager
def download_bar(label: str, *, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Yields the function that hears bytes done and bytes in all. Draws on stderr when that
    is a terminal, and nothing unless `shown`.

    The line appears with the first byte, so that nothing is shown when nothing had to be fetched.
    """
    with _bar(DownloadColumn(), shown) as progress:
        tasks: list[TaskID] = []

        def hear(done: int, total: int) -> None:
            if not tasks and done < total:
                tasks.append(progress.add_task(label, total=total))
            for task in tasks:
                progress.update(task, completed=done, total=total)

        yield hear


@contextmanager
def fraction_bar(label: str, *, shown: bool = True) -> Iterator[Callable[[str, float], None]]:
    """Yields the function that hears what is being done and which fraction (0 to 1) of it all is finished."""
    with _bar(TextColumn("{task.percentage:>3.0f} % {task.fields[what]}"), shown) as progress:
        task = progress.add_task(label, total=1.0, what="")

        def hear(what: str, fraction: float) -> None:
            progress.update(task, completed=fraction, what=what)

        yield hear


def _bar(amount: ProgressColumn, shown: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not (shown and console.is_terminal))
