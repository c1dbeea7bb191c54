"""A pytest plugin for runs under emulation.

Subprocesses get the emulated interpreter, too, and what guards against hanging waits ten times as long. A
file or a test that imports what site.sh leaves out is skipped, and the summary names it with what it needs.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

import tests.clock

ABSENT = ("torch", "transformers", "matplotlib", "openai")
"""What a cloud, a plot and a client of the gateway need, not the device package. A test that misses anything
else fails: the wheel should have brought it."""


class _Absent(importlib.abc.MetaPathFinder):
    """The last finder: asked for what no other has found. Stateless."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname in ABSENT:
            pytest.skip(f"needs {fullname}", allow_module_level=True)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        # Else the summary names the finder.
        report.longrepr = (str(collector.path), 1, report.longrepr[2])
    return report


# The system starts no aarch64 program by itself, and the interpreter would name its own file.
sys.executable = str(Path(__file__).with_name("python.sh"))
sys.meta_path.append(_Absent())
tests.clock.LIMIT *= 10
