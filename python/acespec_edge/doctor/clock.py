"""Clocks: how fine and cheap time is, and whether the cores run at full speed."""

from __future__ import annotations

import time
from typing import Final

from acespec_edge.doctor.finding import Finding
from acespec_edge.doctor.system import System

_SLOW_SOURCES: Final = frozenset({"hpet", "acpi_pm", "jiffies", "pit", "refined-jiffies"})
_OLDEST: Final = 1_735_689_600.0
"""The year 2025: a clock before it was never set, and every certificate looks unborn."""


def probe_clock(system: System, wall: float, resolution: float | None = None) -> Finding:
    """``wall``: seconds since 1970 by this machine. ``resolution``: of the monotonic clock, seconds."""
    fine = time.get_clock_info("monotonic").resolution if resolution is None else resolution
    source = system.text("sys/devices/system/clocksource/clocksource0/current_clocksource")
    paths = system.found("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    governors = sorted({system.text(str(path.relative_to(system.root))) for path in paths} - {""})
    facts = {"source": source, "resolution_seconds": fine, "governors": governors, "wall_seconds": wall}
    words = f"{source or 'unknown'} clock, {fine * 1e9:.0f} ns; governor {', '.join(governors) or 'none'}"
    if wall < _OLDEST:
        advice = "the date is not set, so TLS will refuse every certificate: timedatectl set-ntp true"
        return Finding("clock", "slow", words, facts, advice)
    if source in _SLOW_SOURCES or fine > 1e-3:
        advice = "reading the time is slow here; boot with clocksource=tsc where the CPU has it"
        return Finding("clock", "slow", words, facts, advice)
    if governors and "performance" not in governors:
        advice = "for steady speed set the governor: cpupower frequency-set -g performance"
        return Finding("clock", "ok", words, facts, advice)
    return Finding("clock", "ok", words, facts)
