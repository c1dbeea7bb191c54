"""The drafter over a recorded model, whose forwards take a profile's time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from acespec_edge import _core
from acespec_edge.simulate.clock import World
from acespec_edge.simulate.profiles import EdgeProfile
from acespec_edge.simulate.trace import Record, Trace

_GRANULE: Final = 64
_BRANCH_SLOTS: Final = 1024


@dataclass(frozen=True, slots=True)
class TimedReport:
    """As ``_core.StepReport``; ``seconds`` are the profile's."""

    rows: int
    seconds: float
    prefilling: bool
    exhausted: bool


@dataclass(frozen=True, slots=True)
class TimedRecovery:
    """As ``_core.Recovery``; moving to a node takes no virtual time."""

    hit: bool
    microseconds: float = 0.0


class TimedDrafter:
    """A ``_core.Drafter`` on a TraceEngine. Everything is the drafter's own but step(), which also lets the
    time of its forward pass, and what apply_verdict() says of its time. One task uses it.
    """

    def __init__(self, world: World, profile: EdgeProfile, trace: Trace) -> None:
        """Takes memory for the longest record of ``trace``."""
        self._world = world
        self._profile = profile
        longest = max(len(record.prompt) + len(record.text) for record in trace.records)
        self.context = 1 + longest
        slots = -(-(self.context + _BRANCH_SLOTS) // _GRANULE) * _GRANULE
        self._engine = _core.TraceEngine(trace.vocabulary, slots, max_positions=self.context)
        self._drafter = _core.Drafter(self._engine, _core.DrafterOptions(context=self.context))

    def replay(self, record: Record) -> None:
        """What the next request drafts from."""
        self._engine.set_record(record.prompt, record.text, record.top, record.scores)

    def step(self, width: int, extend: bool) -> TimedReport:
        """See ``_core.Drafter.step``."""
        report = self._drafter.step(width, extend)
        seconds = 0.0 if report.exhausted else self._profile.seconds(report.rows)
        if seconds > 0:
            self._world.wait(self._world() + seconds)
        return TimedReport(report.rows, seconds, report.prefilling, report.exhausted)

    def apply_verdict(self, tokens: list[int]) -> TimedRecovery:
        """See ``_core.Drafter.apply_verdict``."""
        return TimedRecovery(self._drafter.apply_verdict(tokens).hit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)
