"""Cores on the sysfs trees of devices, whole and damaged."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec_edge.cores import Core, Placement, Threads, big_cores, cores, placement

# Of Linux on an RK3588: four A55, two A76, two more that reach a little less.
RK3588 = {
    number: (capacity, khz)
    for number, (capacity, khz) in enumerate(
        [(414, 1_800_000)] * 4 + [(1024, 2_400_000)] * 2 + [(983, 2_304_000)] * 2
    )
}
ORIN = {number: (1024, 1_510_400) for number in range(6)}


def tree(
    root: Path,
    strengths: Mapping[int, tuple[int | None, int | None]],
    *,
    online: str | None = None,
    siblings: Sequence[Sequence[int]] = (),
) -> Path:
    """A sysfs of cores with these capacities and highest clock rates in kHz; ``siblings``: hardware threads
    of one core."""
    folder = root / "devices/system/cpu"
    folder.mkdir(parents=True)
    (folder / "online").write_text(online or f"0-{max(strengths)}\n")
    for number, (capacity, khz) in strengths.items():
        core = folder / f"cpu{number}"
        (core / "cpufreq").mkdir(parents=True)
        (core / "topology").mkdir()
        if capacity is not None:
            (core / "cpu_capacity").write_text(f"{capacity}\n")
        if khz is not None:
            (core / "cpufreq/cpuinfo_max_freq").write_text(f"{khz}\n")
    for group in siblings:
        for number in group:
            listed = ",".join(map(str, group))
            (folder / f"cpu{number}/topology/thread_siblings_list").write_text(f"{listed}\n")
    return root


def numbers(found: Sequence[Core]) -> list[int]:
    return [core.number for core in found]


def test_an_rk3588_drafts_on_its_four_a76(tmp_path: Path) -> None:
    found = cores(tree(tmp_path, RK3588))
    assert numbers(found) == list(range(8))
    assert found[0].capacity == pytest.approx(414 / 1024)
    assert numbers(big_cores(found)) == [4, 5, 6, 7]
    assert placement("auto", found, range(8)) == Placement(4, (4, 5, 6, 7))
    assert placement(1, found, range(8)) == Placement(1, (4, 5, 6, 7))


def test_clock_rates_tell_where_no_capacity_does(tmp_path: Path) -> None:
    found = cores(tree(tmp_path, {number: (None, khz) for number, (_, khz) in RK3588.items()}))
    assert numbers(big_cores(found)) == [4, 5, 6, 7]


def test_a_capacity_told_of_some_cores_alone_is_not_compared_with_clock_rates(tmp_path: Path) -> None:
    strengths: dict[int, tuple[int | None, int | None]] = {**RK3588, 4: (None, 2_400_000)}
    found = cores(tree(tmp_path, strengths))
    assert numbers(big_cores(found)) == [4, 5, 6, 7]
    assert found[0].capacity == pytest.approx(0.75)


def test_an_orins_alike_cores_are_left_to_the_system(tmp_path: Path) -> None:
    found = cores(tree(tmp_path, ORIN))
    assert numbers(big_cores(found)) == list(range(6))
    assert placement("auto", found, range(6)) == Placement(4)
    assert placement(2, found, range(6)) == Placement(2)


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    x86 = {number: (None, 4_000_000) for number in range(4)}
    found = cores(tree(tmp_path, x86, siblings=[(0, 2), (1, 3)]))
    assert [core.unit for core in found] == [0, 1, 0, 1]
    assert placement("auto", found, range(4)) == Placement(2)


def test_cores_that_are_offline_or_not_allowed_are_not_used(tmp_path: Path) -> None:
    found = cores(tree(tmp_path, RK3588, online="0-3,6-7\n"))
    assert numbers(found) == [0, 1, 2, 3, 6, 7]
    assert placement("auto", found, range(8)) == Placement(2, (6, 7))
    # A caller who is kept to the little cores has a reason.
    assert placement("auto", found, range(4)) == Placement(4)
    assert placement("auto", found, [0, 6]) == Placement(1, (6,))
    assert placement("auto", found, []) == Placement(1)


def test_more_threads_than_big_cores_are_meant_for_all(tmp_path: Path) -> None:
    found = cores(tree(tmp_path, RK3588))
    assert placement(6, found, range(8)) == Placement(6)


def test_without_sysfs_all_allowed_cores_are_alike(tmp_path: Path) -> None:
    assert cores(tmp_path / "none") == [
        Core(number, 1.0, number) for number in sorted(os.sched_getaffinity(0))
    ]


@pytest.mark.parametrize("online", ["", "x", "3-", "-1", "0-99999999999", "0;1", "\u0661"])
def test_a_damaged_list_counts_as_none(tmp_path: Path, online: str) -> None:
    root = tree(tmp_path, {0: (1024, None)}, online=" ")
    (root / "devices/system/cpu/online").write_text(online, encoding="utf-8")
    assert numbers(cores(root)) == sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("capacity", ["", "-3", "0", "1e3", "1" * 40, "\0"])
def test_a_damaged_capacity_counts_as_not_told(tmp_path: Path, capacity: str) -> None:
    root = tree(tmp_path, RK3588)
    (root / "devices/system/cpu/cpu2/cpu_capacity").write_text(capacity)
    assert numbers(big_cores(cores(root))) == [4, 5, 6, 7]


def test_a_list_without_end_is_cut(tmp_path: Path) -> None:
    assert len(cores(tree(tmp_path, {0: (1024, None)}, online="0-99999\n"))) == 4096


_CORES = st.lists(st.floats(0.05, 1.0), min_size=1, max_size=12).map(
    lambda capacities: [
        Core(number, capacity / max(capacities), number // 2 * 2)
        for number, capacity in enumerate(capacities)
    ]
)


@given(found=_CORES, threads=st.just("auto") | st.integers(1, 16), allowed=st.sets(st.integers(0, 12)))
def test_a_placement_is_of_allowed_cores_and_has_room(
    found: list[Core], threads: Threads, allowed: set[int]
) -> None:
    placed = placement(threads, found, allowed)
    kept = [core for core in found if core.number in placed.cores]
    left = [core for core in found if core.number in allowed and core.number not in placed.cores]
    assert set(placed.cores) <= allowed
    assert placed.threads == threads or (threads == "auto" and 1 <= placed.threads <= 4)
    if kept:
        assert placed.threads <= len(kept)
        assert left and max(core.capacity for core in left) < min(core.capacity for core in kept)
