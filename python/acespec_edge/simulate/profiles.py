"""What simulated machines take for a forward."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from acespec_edge.errors import UsageError
from acespec_edge.simulate.trace import Trace

THIS_MACHINE: Final = "this-machine"
"""The profile that the trace itself was recorded with."""


@dataclass(frozen=True, slots=True)
class EdgeProfile:
    """A device with its drafter. ``forward_ms``: milliseconds of a forward by its rows, for one row and some
    more; between them, and beyond, straight lines. ``sources``: where the figures come from.
    """

    name: str
    forward_ms: Mapping[int, float]
    sources: tuple[str, ...] = ()

    def seconds(self, rows: int) -> float:
        """Of a forward of ``rows`` tokens."""
        return _on_lines(self.forward_ms, rows) / 1e3


@dataclass(frozen=True, slots=True)
class HeadProfile:
    """A draft head in the cloud. ``acceptance``: the probability that a token of its block is the target's,
    those before it being so; ``block_ms``: milliseconds of a block of ``block`` tokens; ``per_token``: nodes
    of its own that the cloud verifies for each token it commits by itself, at most.
    """

    acceptance: float
    block_ms: float = 0.0
    block: int = 7
    per_token: float = 4.0


@dataclass(frozen=True, slots=True)
class CloudProfile:
    """A cloud with its target. ``verify_ms``: milliseconds of a forward by the nodes that it verifies, for
    none (a plain step) and some more; between them, and beyond, straight lines. A chunk of a prompt takes a
    plain step and ``prefill_ms`` for each of its tokens. ``head``: what it drafts with, if anything.
    """

    name: str
    verify_ms: Mapping[int, float]
    prefill_ms: float
    sources: tuple[str, ...] = ()
    head: HeadProfile | None = None

    @classmethod
    def affine(
        cls,
        name: str,
        *,
        base_ms: float,
        per_node_ms: float,
        prefill_ms: float,
        sources: tuple[str, ...] = (),
    ) -> CloudProfile:
        """A forward takes ``base_ms`` and ``per_node_ms`` for each node."""
        return cls(name, {0: base_ms, 1: base_ms + per_node_ms}, prefill_ms, sources)

    def seconds(self, nodes: int) -> float:
        """Of a verification of ``nodes`` nodes; of a plain step for none."""
        return _on_lines(self.verify_ms, nodes) / 1e3

    def prefill_seconds(self, tokens: int) -> float:
        """Of one chunk of a prompt."""
        return self.seconds(0) + self.prefill_ms * tokens / 1e3


def _on_lines(table: Mapping[int, float], count: int) -> float:
    """The value at ``count`` on straight lines through the table's points; the first one below them, the last
    line's beyond them unless it falls."""
    known = sorted(table.items())
    low, high = known[0], known[0]
    for point in known[1:]:
        low, high = high, point
        if count <= point[0]:
            break
    if low == high or count <= low[0]:
        return low[1]
    slope = (high[1] - low[1]) / (high[0] - low[0])
    if count <= high[0]:
        return low[1] + slope * (count - low[0])
    return high[1] + max(0.0, slope) * (count - high[0])


def edge_profile(name: str, trace: Trace | None = None) -> EdgeProfile:
    """The built-in profile ``name``, or the one in the file of that name; this-machine is the trace's.

    Raises UsageError naming the file and the field that is wrong, or the profiles there are.
    """
    if name == THIS_MACHINE:
        table = _timing(trace, "edge_ms")
        return EdgeProfile(name, table, (f"measured on {trace.machine}" if trace else "",))
    where, entry = _entry("edge", name)
    known = _field(entry, where, "forward_ms", dict)
    try:
        table = {int(rows): float(ms) for rows, ms in known.items()}
    except (TypeError, ValueError):
        table = {}
    if 1 not in table or any(rows < 1 or not 0 < ms < math.inf for rows, ms in table.items()):
        raise UsageError(
            f'{where}: forward_ms is {known!r}: milliseconds by rows, such as {{"1": 20, "8": 24}}, are right'
        )
    return EdgeProfile(name, table, _sources(entry, where))


def cloud_profile(name: str, trace: Trace | None = None) -> CloudProfile:
    """As edge_profile(). ``BASE,PER_NODE[,PREFILL]`` gives milliseconds instead of a name."""
    if name == THIS_MACHINE:
        table = _timing(trace, "cloud_ms")
        prefill = trace.timing.prefill_ms if trace else 0.0
        return CloudProfile(name, table, prefill, (f"measured on {trace.machine}" if trace else "",))
    if "," in name and not Path(name).exists():
        base, per_node, prefill = _numbers(name)
        return CloudProfile.affine(
            name, base_ms=base, per_node_ms=per_node, prefill_ms=prefill, sources=("given",)
        )
    where, entry = _entry("cloud", name)
    base, per_node, prefill = (
        _milliseconds(entry, where, field) for field in ("base_ms", "per_node_ms", "prefill_ms")
    )
    return CloudProfile.affine(
        name, base_ms=base, per_node_ms=per_node, prefill_ms=prefill, sources=_sources(entry, where)
    )


def head_profile(text: str) -> HeadProfile:
    """Reads ``ACCEPTANCE[,BLOCK_MS]``. Raises UsageError."""
    try:
        acceptance, block_ms = [*map(float, text.split(",")), *[0.0] * (text.count(",") == 0)]
        if not (0 <= acceptance <= 1 and 0 <= block_ms < math.inf):
            raise ValueError
    except ValueError:
        raise UsageError(
            f"head is {text!r}: give ACCEPTANCE, from 0 to 1, or ACCEPTANCE,BLOCK_MS, such as 0.7,5"
        ) from None
    return HeadProfile(acceptance, block_ms)


def names(kind: str) -> list[str]:
    """The built-in profiles of ``kind``, edge or cloud."""
    return list(_shipped()[kind])


def _shipped() -> dict[str, dict[str, Any]]:
    text = (resources.files("acespec_edge.simulate") / "profiles.json").read_text(encoding="utf-8")
    shipped: dict[str, dict[str, Any]] = json.loads(text)
    return shipped


def _entry(kind: str, name: str) -> tuple[str, dict[str, Any]]:
    """Where it was found, and the profile."""
    shipped = _shipped()[kind]
    if name in shipped:
        return f"profile {name}", shipped[name]
    path = Path(name)
    if not path.is_file():
        raise UsageError(
            f"{kind} profile is {name!r}: give a JSON file, {THIS_MACHINE}, or one of {', '.join(shipped)}"
        )
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise UsageError(f"{path}: not a usable profile ({problem})") from problem
    if not isinstance(entry, dict):
        raise UsageError(f"{path}: not a usable profile (a JSON object is right)")
    return str(path), entry


def _field(entry: dict[str, Any], where: str, field: str, kind: type) -> Any:
    value = entry.get(field)
    if not isinstance(value, kind):
        raise UsageError(f"{where}: {field} is {value!r}: docs/simulator.md has what is right")
    return value


def _milliseconds(entry: dict[str, Any], where: str, field: str) -> float:
    value = entry.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UsageError(f"{where}: {field} is {value!r}: milliseconds, 0 or more, are right")
    return float(value)


def _sources(entry: dict[str, Any], where: str) -> tuple[str, ...]:
    return tuple(str(source) for source in _field({"sources": [], **entry}, where, "sources", list))


def _timing(trace: Trace | None, field: str) -> Mapping[int, float]:
    table: Mapping[int, float] = {} if trace is None else getattr(trace.timing, field)
    first = 1 if field == "edge_ms" else 0
    if first not in table:
        raise UsageError(f"profile {THIS_MACHINE}: the trace has no timing: name another profile")
    return table


def _numbers(text: str) -> tuple[float, float, float]:
    """A prompt takes the base alone unless there is a third number, as where a target is slowed down to stand
    in for a larger one."""
    try:
        base, per_node, prefill = [*map(float, text.split(",")), *[0.0] * (text.count(",") == 1)]
        if not all(0 <= ms < math.inf for ms in (base, per_node, prefill)):
            raise ValueError
    except ValueError:
        raise UsageError(
            f"cloud profile is {text!r}: give BASE,PER_NODE in milliseconds, such as 150,1; a third number "
            "is for each token of a prompt"
        ) from None
    return base, per_node, prefill
