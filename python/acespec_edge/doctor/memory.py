"""Memory: what is free, against what the bundle will take."""

from __future__ import annotations

import re
from typing import Final

from acespec_edge.bundle import Bundle
from acespec_edge.doctor.finding import Finding
from acespec_edge.doctor.system import System

_BASE: Final = 250 << 20
"""Bytes of Python, ONNX Runtime and the tokenizer."""

_NO_LIMIT: Final = 1 << 50


def needed_bytes(bundle: Bundle, context: int, cache_mb: int) -> int:
    """Bytes that a runtime takes: the weights, which the runtime packs once more at worst, float32 keys and
    values of the context, and those of the branches."""
    weights = sum(file.stat().st_size for file in bundle.path.glob("model.onnx*"))
    ring = 2 * bundle.layers * bundle.kv_width * 4 * min(context, bundle.max_positions)
    return _BASE + 2 * weights + ring + (cache_mb << 20)


def probe_memory(system: System, needed: int | None) -> Finding:
    """``needed``: bytes; None without a bundle."""
    values = dict(re.findall(r"^(\w+):\s+(\d+) kB", system.text("proc/meminfo"), re.MULTILINE))
    total = int(values.get("MemTotal", 0)) << 10
    free = int(values.get("MemAvailable", 0)) << 10
    limit = system.number("sys/fs/cgroup/memory.max")
    if limit is not None and limit < min(total, _NO_LIMIT):
        # A container's limit counts for it as the machine's memory does.
        used = system.number("sys/fs/cgroup/memory.current") or 0
        total, free = limit, min(free, max(0, limit - used))
    facts = {"total_bytes": total, "free_bytes": free, "needed_bytes": needed}
    if not total:
        return Finding("memory", "ok", "unknown: no /proc/meminfo", facts)
    words = f"{_gb(total)} GB, free {_gb(free)} GB"
    if needed is None:
        return Finding("memory", "ok", words, facts)
    words += f", the drafter takes up to {_gb(needed)} GB"
    if free >= needed:
        return Finding("memory", "ok", words, facts)
    advice = "export with --target cpu-int4, take a smaller drafter, or lower --context and --cache-mb"
    return Finding("memory", "bad" if needed > total else "slow", words, facts, advice)


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f}"
