"""A progress bar on the terminal: one line that ends when the work does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def download_bar(label: str, *, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Yields the function that hears bytes done and bytes in all. It draws on stderr, and nothing unless
    `shown`."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not shown) as progress:
        task = progress.add_task(label, total=None)

        def hear(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield hear
