"""Cores: which ones there are, which ones may be used, and what they can do."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from acespec_edge.cores import Core, big_cores, cores, placement
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


def probe_cpu(system: System, usable: Collection[int], threads: int) -> Finding:
    """``usable``: cores that this process may run on; ``threads``: of the drafter."""
    found = cores(system.root / "sys")
    big = [core.number for core in big_cores(found)]
    mine = [core.number for core in found if core.number in usable]
    using = placement(threads, found, usable).cores or mine
    kinds = _kinds(found, _models(system))
    board = system.text("proc/device-tree/model")
    known = _features(system)
    features = sorted(known & set(_FEATURES))
    facts = {
        "board": board,
        "cores": len(found),
        "models": kinds,
        "big_cores": big,
        "usable_cores": mine,
        "features": features,
    }
    named = " + ".join(f"{count} x {name}" for name, count in kinds.items()) or "unknown"
    words = f"{len(found)} cores ({named}), using {ranges(using) or 'none'}"
    if board:
        words = f"{board}: {words}"
    if known and not known & set(_FAST):
        advice = "these cores have no fast int8 products: take the smallest drafter of the family"
        return Finding("cpu", "slow", words, facts, advice)
    if len(mine) < threads:
        advice = f"{threads} drafter threads share {len(mine)} cores: give --threads {max(1, len(mine))}"
        return Finding("cpu", "slow", words, facts, advice)
    if set(mine).isdisjoint(big):
        advice = (
            f"only little cores may be used: start with taskset -c {ranges(big)}, or CPUAffinity= in the unit"
        )
        return Finding("cpu", "slow", words, facts, advice)
    if not set(using) <= set(big):
        few = len(set(mine).intersection(big))
        advice = f"{threads} drafter threads wait for little cores: give --threads {few}"
        return Finding("cpu", "slow", words, facts, advice)
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


def _kinds(found: Collection[Core], models: dict[int, str]) -> dict[str, int]:
    """How many of each model, the fastest first."""
    kinds: dict[str, int] = {}
    for core in sorted(found, key=lambda core: -core.capacity):
        name = models.get(core.number, "unknown")
        kinds[name] = kinds.get(name, 0) + 1
    return kinds
