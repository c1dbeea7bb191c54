"""What the drafter grows while a verdict is under way, and before a draft leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from acespec_edge import _core
from acespec_edge.control import Controller
from acespec_edge.drafting import Drafter
from acespec_edge.stats import Meter

_RESIDUAL: Final = 0.7
"""Exponent of the power law by which the probability of having missed the correction falls with the number
of alternatives, for the closed form."""


class Growth:
    """The forwards of one request, round by round: as many as the controller finds worth their time, within
    the policy's budget and where its arm says. Not thread-safe.
    """

    def __init__(
        self, drafter: Drafter, control: Controller, meter: Meter, clock: Callable[[], float]
    ) -> None:
        """The drafter has begun the request."""
        self.resting = False
        """The drafter reads along and drafts nothing."""
        self._drafter = drafter
        self._control = control
        self._policy = control.policy
        self._meter = meter
        self._clock = clock
        self._grown = 0
        self._budget: int | None = None
        drafter.set_arm(_ARMS[self._policy.explore])
        drafter.allot([])

    def grow(self, *, drafted: int | None = None) -> bool:
        """One forward, if any is worth its time. ``drafted``: nodes of a draft that the cloud waits for."""
        drafter = self._drafter
        if drafter.pending:
            return self.forward(self._control.most, extend=False)
        if drafted is None and (self.resting or self._policy.explore == "none" or self._spent()):
            return False
        frontier = drafter.frontier(self._control.most)
        width = self._control.width(frontier, self._clock(), drafted=drafted)
        return width > 0 and self.forward(width, extend=False)

    def forward(self, width: int, *, extend: bool) -> bool:
        """One forward; False when nothing was left to expand."""
        began = self._clock()
        report = self._drafter.step(width, extend)
        if report.exhausted:
            return False
        self._meter.forwards += 1
        if report.prefilling:
            self._control.prefilled(report.rows, self._clock() - began)
        else:
            self._control.forwarded(report.rows, self._clock() - began)
            self._grown += report.rows
        return True

    def _spent(self) -> bool:
        return self._budget is not None and self._grown >= self._budget

    def start_round(self, length: int) -> None:
        """Sets how much is grown until the verdict on ``length`` tokens of the main chain, and where."""
        drafter, policy = self._drafter, self._policy
        self._grown = 0
        allotted = policy.explore in ("uniform", "nonuniform")
        self._budget = self._control.budget() if allotted or policy.budget is not None else None
        if not allotted:
            return
        assert self._budget is not None
        stops = _core.stop_probabilities(drafter.chain_acceptances(length))
        if policy.explore == "uniform":
            drafter.allot(_core.allocate_uniform(len(stops) - 1, self._budget))
        else:
            costs = [1.0] * len(stops)
            drafter.allot(_core.allocate_nonuniform(stops, costs, self._budget, _RESIDUAL))

    def go_on(self) -> None:
        """A round follows another in flight: its budget is its own."""
        self._grown = 0


_ARMS: Final = {
    "none": _core.Arm.none,
    "single": _core.Arm.single,
    "uniform": _core.Arm.allotted,
    "nonuniform": _core.Arm.allotted,
    "measured": _core.Arm.measured,
}
