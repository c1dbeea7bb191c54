"""What the measuring commands have in common: arguments, errors, a progress bar on stderr."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator

from acespec_edge.errors import AcespecError, UsageError
from tools.bench.pairs import PAIRS


def add_pair(parser: argparse.ArgumentParser) -> None:
    """`--pair NAME`."""
    parser.add_argument(
        "--pair", choices=sorted(PAIRS), default="smollm2", help="drafter and target (smollm2)"
    )


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give whole numbers such as 1,2,5") from None
    if min(values) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers of 0 or more")
    return values


def run(work: Callable[[], int]) -> int:
    """The exit status of `work`: its own, 2 for bad values, 1 for other errors, 130 when interrupted."""
    try:
        return work()
    except UsageError as error:
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        return 2
    except AcespecError as error:
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr; call what it gives after each of `total` parts, with a word on what is being done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda doing: bar.update(task, advance=1, description=doing)
