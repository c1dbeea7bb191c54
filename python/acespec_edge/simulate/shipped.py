"""The trace that comes with the package, for a look without recording one."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from acespec_edge.simulate.trace import Trace


def opened(path: Path | None) -> Trace:
    """The trace at ``path``, or the built-in one. Raises UsageError for one that is not usable."""
    if path is not None:
        return Trace.load(path)
    with resources.as_file(resources.files("acespec_edge.simulate") / "smollm2.trace") as file:
        return Trace.load(file)
