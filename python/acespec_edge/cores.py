"""Which processor cores there are, and which of them a drafter should run on."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from acespec_edge.errors import UsageError

_BIG: Final = 0.85
"""Capacity of a big core at least, relative to the strongest. Cores of one kind differ by their bins (an
RK3588's big ones by 4 %), kinds differ by more (its little ones have 0.75 by clock rate alone).
"""

_MOST_THREADS: Final = 4
"""Of a drafter: a forward of a few tokens waits for memory, and more cores do not make that faster."""

_MOST_CORES: Final = 4096
"""Numbers are below it; a damaged list may name more."""


Threads = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class Core:
    """A core that is online.

    ``number``: as the system counts. ``capacity``: how fast it is, 1.0 being the strongest; 1.0 for all where
    the system does not tell. ``unit``: the lowest number among the hardware threads of one physical core.
    """

    number: int
    capacity: float
    unit: int


def cores(root: Path = Path("/sys")) -> list[Core]:
    """The cores that are online, by number; those that the process may run on, where ``root`` names none.

    ``root``: of sysfs. The capacity is the scheduler's (``cpu_capacity``), else the highest clock rate
    (``cpuinfo_max_freq``). What cannot be read counts as not told; never raises.
    """
    folder = root / "devices/system/cpu"
    numbers = _listed(folder / "online") or sorted(os.sched_getaffinity(0))
    strengths = _strengths(folder, numbers, "cpu_capacity")
    if strengths is None:
        strengths = _strengths(folder, numbers, "cpufreq/cpuinfo_max_freq") or dict.fromkeys(numbers, 1)
    strongest = max(strengths.values())
    return [
        Core(number, strengths[number] / strongest, min([number, *_siblings(folder, number)]))
        for number in numbers
    ]


def big_cores(found: Iterable[Core]) -> list[Core]:
    """Those of ``found`` that are about as strong as the strongest of them. A forward that is split over
    cores takes as long as its slowest part, so it should have cores of one kind."""
    all_of_them = list(found)
    strongest = max((core.capacity for core in all_of_them), default=0.0)
    return [core for core in all_of_them if core.capacity >= _BIG * strongest]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a drafter runs. ``threads``: of its forwards. ``cores``: numbers of the cores that its threads
    are kept to; empty: wherever the system puts them."""

    threads: int
    cores: tuple[int, ...] = ()


def placement(threads: Threads, found: Iterable[Core], allowed: Collection[int] | None = None) -> Placement:
    """How to run a drafter of ``threads`` threads; "auto": one for each big physical core, four at most.

    Threads are kept to the big cores where there are little ones too, unless there are more threads than big
    cores: then they were meant for all. ``allowed``: numbers of the cores of ``found`` that may be used; by
    default those that the caller's thread may run on (taskset, containers). Raises UsageError for a number
    below 1.
    """
    usable = os.sched_getaffinity(0) if allowed is None else allowed
    mine = [core for core in found if core.number in usable]
    big = big_cores(mine)
    units = len({core.unit for core in big})
    count = threads if isinstance(threads, int) else max(1, min(_MOST_THREADS, units))
    if count < 1:
        raise UsageError(f"threads is {threads}: it must be 1 or more, or auto")
    if len(big) == len(mine) or count > len(big):
        return Placement(count)
    return Placement(count, tuple(core.number for core in big))


def keep_to(placed: Placement) -> None:
    """Keeps the calling thread to the cores, if any are named. Where the system does not let it (a core went
    offline, a container shrank) the thread stays where it is."""
    if placed.cores:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, placed.cores)


def _strengths(folder: Path, numbers: list[int], file: str) -> dict[int, int] | None:
    """What ``file`` says of every core; None unless it says something of all: two measures do not compare."""
    values = {number: _number(folder / f"cpu{number}" / file) for number in numbers}
    told = {number: value for number, value in values.items() if value}
    return told if len(told) == len(numbers) else None


def _siblings(folder: Path, number: int) -> list[int]:
    return _listed(folder / f"cpu{number}/topology/thread_siblings_list")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _number(file: Path) -> int:
    text = _text(file)
    return int(text) if re.fullmatch(r"\d{1,12}", text, re.ASCII) else 0


def _listed(file: Path) -> list[int]:
    """Numbers of a list such as ``0-3,6``; empty when there is none."""
    numbers: set[int] = set()
    for part in _text(file).split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part, re.ASCII)
        if match is None:
            return []
        first, last = int(match[1]), int(match[2] or match[1])
        numbers.update(range(first, min(last + 1, _MOST_CORES)))
    return sorted(numbers)
