"""Where the drafter's threads run: what the runtime asks for, and that the system has done it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acespec_edge import _core, edge, local_drafter
from acespec_edge.bundle import Bundle
from acespec_edge.commands.options import thread_count
from acespec_edge.cores import Core, Placement, keep_to
from acespec_edge.errors import UsageError
from acespec_edge.ort_library import ort_library
from tests.clock import wait_until
from tests.python.edge_kit import PROMPT, runtime
from tests.python.engine_kit import VECTORS
from tests.python.fake_bundle import make_bundle
from tests.python.fakes import FakeDrafter, mixing
from tests.vectors import make_tiny_model as tiny

MINE = sorted(os.sched_getaffinity(0))
SOME = pytest.mark.skipif(len(MINE) < 2, reason="a single core is neither big nor little")


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "bundle", eos_ids=())


def engine(**options: Any) -> _core.OrtEngine:
    return _core.OrtEngine(
        str(VECTORS / "tiny_model.onnx"),
        ort_library(),
        slots=64,
        vocabulary=tiny.VOCABULARY,
        max_positions=tiny.POSITIONS,
        **options,
    )


def starts(make: Callable[[], object], *expected: list[int]) -> None:
    """Threads that are kept to these cores live while what ``make`` gives does; each sees to it itself."""
    before = set(os.listdir("/proc/self/task"))
    made = make()

    def kept() -> list[list[int]]:
        threads = set(os.listdir("/proc/self/task")) - before
        return [sorted(os.sched_getaffinity(int(thread))) for thread in threads]

    wait_until(lambda: kept() == list(expected))
    del made


def test_an_engines_threads_are_kept_to_its_cores() -> None:
    engine()  # The runtime itself starts a thread with the first one.
    # The caller is the third thread of a forward, and stays where it is.
    starts(lambda: engine(threads=3, cores=MINE[-1:]), MINE[-1:], MINE[-1:])
    starts(lambda: engine(threads=3, cores=MINE), MINE, MINE)
    starts(lambda: engine(threads=2), MINE)
    assert sorted(os.sched_getaffinity(0)) == MINE


def test_numbers_of_cores_are_checked() -> None:
    with pytest.raises(UsageError, match="cores holds 4096, must be numbers below 4096"):
        engine(cores=[4096])


class Watched(FakeDrafter):
    """Knows on which cores it was asked."""

    def __init__(self) -> None:
        super().__init__(mixing(1, vocabulary=40))
        self.cores: set[frozenset[int]] = set()

    def step(self, width: int, extend: bool) -> Any:
        self.cores.add(frozenset(os.sched_getaffinity(0)))
        return super().step(width, extend)


@SOME
@pytest.mark.parametrize("mode", ["auto", "edge"])
def test_drafting_is_kept_to_the_big_cores(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    little, big = [Core(number, 0.4, number) for number in MINE[:-1]], Core(MINE[-1], 1.0, MINE[-1])
    monkeypatch.setattr(edge, "cores", lambda: [*little, big])
    watched = Watched()
    with runtime(bundle, drafter=watched, mode=mode) as made:
        made.generate(PROMPT, max_tokens=12)
    assert watched.cores == {frozenset({big.number})}
    assert os.sched_getaffinity(0) == set(MINE)


@pytest.mark.parametrize(("threads", "expected"), [(1, 1), (2, 2), ("auto", min(4, len(MINE)))])
def test_the_drafter_gets_its_threads_and_cores(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, threads: Any, expected: int
) -> None:
    asked: list[dict[str, Any]] = []

    def load(_: Bundle, **options: Any) -> FakeDrafter:
        asked.append(options)
        return FakeDrafter(mixing(1, vocabulary=40))

    monkeypatch.setattr(edge, "cores", lambda: [Core(number, 1.0, number) for number in MINE])
    monkeypatch.setattr(local_drafter, "load_drafter", load)
    for power in ("full", "save"):
        edge.EdgeRuntime(bundle, mode="edge", threads=threads, power=power).close()  # type: ignore[arg-type]
    assert [(one["threads"], one["cores"], one["spinning"]) for one in asked] == [
        (expected, (), True),
        (expected, (), False),
    ]


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5", "AUTO"])
def test_a_count_on_the_command_line_is_a_number_or_auto(text: str) -> None:
    assert (thread_count("auto"), thread_count("3"), thread_count(1)) == ("auto", 3, 1)
    with pytest.raises(UsageError, match=f"--threads is '{text}': it must be 1 or more, or auto"):
        thread_count(text)


def test_a_core_that_is_gone_stops_nothing() -> None:
    keep_to(Placement(1, (4095,)))
    assert os.sched_getaffinity(0) == set(MINE)
