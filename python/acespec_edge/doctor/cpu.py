"""Cores: which ones there are, which ones may be used, and what they can do."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from acespec_edge.doctor.finding import Finding
from acespec_edge.doctor.system import System, ranges

_ARM_PARTS: Final = {
    "0xd03": "Cortex-A53",
    "0xd04": "Cortex-A35",
    "0xd05": "Cortex-A55",
    "0xd07": "Cortex-A57",
    "0xd08": "Cortex-A72",
    "0xd09": "Cortex-A73",
    "0xd0a": "Cortex-A75",
    "0xd0b": "Cortex-A76",
    "0xd0c": "Neoverse-N1",
    "0xd0d": "Cortex-A77",
    "0xd40": "Neoverse-V1",
    "0xd41": "Cortex-A78",
    "0xd42": "Cortex-A78AE",
    "0xd44": "Cortex-X1",
    "0xd46": "Cortex-A510",
    "0xd47": "Cortex-A710",
    "0xd48": "Cortex-X2",
    "0xd49": "Neoverse-N2",
}
_FEATURES: Final = {
    "asimddp": "dot products",
    "i8mm": "int8 matrices",
    "asimdhp": "half floats",
    "avx2": "AVX2",
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX-VNNI",
    "amx_int8": "AMX",
}
_FAST: Final = ("asimddp", "i8mm", "avx2", "avx512_vnni", "avx_vnni", "amx_int8")
"""Any of them makes products of int8 fast."""

_LITTLE: Final = 0.8
"""Share of the fastest core's speed below which a core is a small one."""


@dataclass(frozen=True, slots=True)
class Core:
    """One CPU. ``speed``: the kernel's capacity, else the highest clock, in whatever unit; None: unknown."""

    number: int
    model: str
    speed: int | None


def cores(system: System) -> list[Core]:
    """The CPUs that the kernel knows of."""
    models = _models(system)
    found = []
    for folder in system.found("sys/devices/system/cpu/cpu[0-9]*"):
        number = int(folder.name.removeprefix("cpu"))
        base = f"sys/devices/system/cpu/{folder.name}"
        if system.text(f"{base}/online") == "0":
            continue
        speed = system.number(f"{base}/cpu_capacity")
        if speed is None:
            speed = system.number(f"{base}/cpufreq/cpuinfo_max_freq")
        found.append(Core(number, models.get(number, ""), speed))
    return sorted(found, key=lambda core: core.number)


def fast_cores(found: Collection[Core]) -> list[int]:
    """Numbers of the cores that are no small ones."""
    speeds = [core.speed for core in found if core.speed is not None]
    bound = _LITTLE * max(speeds, default=0)
    return [core.number for core in found if core.speed is None or core.speed >= bound]


def probe_cpu(system: System, usable: Collection[int], threads: int) -> Finding:
    """``usable``: cores that this process may run on; ``threads``: of the drafter."""
    found = cores(system)
    fast = fast_cores(found)
    mine = [core for core in found if core.number in usable]
    mine_fast = [core.number for core in mine if core.number in fast]
    kinds = _kinds(found)
    board = system.text("proc/device-tree/model")
    known = _features(system)
    features = sorted(known & set(_FEATURES))
    facts = {
        "board": board,
        "cores": len(found),
        "models": kinds,
        "fast_cores": fast,
        "usable_cores": [core.number for core in mine],
        "features": features,
    }
    named = " + ".join(f"{count} x {name}" for name, count in kinds.items()) or "unknown"
    words = f"{len(found)} cores ({named}), using {ranges([core.number for core in mine]) or 'none'}"
    if board:
        words = f"{board}: {words}"
    if not found:
        return Finding("cpu", "ok", "unknown: the kernel lists no cores", facts)
    if known and not known & set(_FAST):
        advice = "these cores have no fast int8 products: take the smallest drafter of the family"
        return Finding("cpu", "slow", words, facts, advice)
    if len(mine) < threads:
        advice = f"{threads} drafter threads share {len(mine)} cores: give --threads {max(1, len(mine))}"
        return Finding("cpu", "slow", words, facts, advice)
    if not mine_fast:
        advice = (
            f"only small cores may be used: start with taskset -c {ranges(fast)}, or CPUAffinity= in the unit"
        )
        return Finding("cpu", "slow", words, facts, advice)
    if len(mine_fast) < len(mine):
        advice = (
            f"keep the drafter off the small cores: taskset -c {ranges(fast)}, or CPUAffinity= in the unit"
        )
        return Finding("cpu", "ok", words, facts, advice)
    return Finding("cpu", "ok", words, facts)


def _models(system: System) -> dict[int, str]:
    """Names of the CPUs by number."""
    models = {}
    number = 0
    for line in system.text("proc/cpuinfo").splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name == "processor" and value.isdecimal():
            number = int(value)
        elif name == "model name":
            models[number] = value
        elif name == "CPU part":
            models[number] = _ARM_PARTS.get(value, f"part {value}")
    return models


def _features(system: System) -> set[str]:
    text = system.text("proc/cpuinfo")
    found = re.findall(r"^(?:Features|flags)\s*:\s*(.*)$", text, re.MULTILINE)
    # What one kind of core lacks, no thread can rely on.
    return set.intersection(*(set(line.split()) for line in found)) if found else set()


def _kinds(found: Collection[Core]) -> dict[str, int]:
    """How many of each model, the fastest first."""
    kinds: dict[str, int] = {}
    for core in sorted(found, key=lambda core: -(core.speed or 0)):
        name = core.model or "unknown"
        kinds[name] = kinds.get(name, 0) + 1
    return kinds
