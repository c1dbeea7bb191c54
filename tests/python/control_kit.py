"""A controller and made-up measurements for it; every time is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from acespec_edge import _core
from acespec_edge.control import Controller
from acespec_edge.policy import POLICIES, Policy
from acespec_edge.session_events import Committed

RTT = 0.1
STEP = 0.05
NODE = 0.001
FORWARD = 0.01


def verdict(
    at: float, tokens: int = 1, nodes: int = 0, *, queue: float = 0.0, answered: bool = True, **more: object
) -> Committed:
    """Of a target that takes 50 ms and 1 ms a node, 100 ms away."""
    found = Committed(
        list(range(tokens)),
        max(0, tokens - 1),
        _core.Finish.none,
        at,
        round_trip=RTT if answered else None,
        bytes_up=40 + 5 * nodes,
        bytes_down=50 + 3 * tokens,
        verify=STEP + NODE * nodes,
        queue=queue,
        nodes=nodes,
        answered=answered,
    )
    return replace(found, **more)  # type: ignore[arg-type]


def controller(policy: Policy | str = "auto", *, width: int = 16) -> Controller:
    return Controller(POLICIES[policy] if isinstance(policy, str) else policy, width=width)


def measured(
    policy: Policy | str = "auto",
    *,
    tokens: int = 5,
    rounds: int = 40,
    nodes: Sequence[int] = (6, 12),
    acceptance: float = 0.8,
) -> Controller:
    """After ``rounds`` rounds of 200 ms, each of ``tokens`` tokens; the last ended at 0.2 * rounds."""
    control = controller(policy)
    control.begin(20)
    control.accepts(acceptance)
    control.answered(verdict(0.0, rough=True))
    for number in range(1, rounds + 1):
        for width in (1, 8, 16):
            control.forwarded(width, FORWARD * (1 + width / 8))
        control.answered(verdict(0.2 * number, tokens, nodes[number % len(nodes)]))
        control.drafting_pays()
    return control


def after_misses(policy: Policy | str) -> Controller:
    """After 40 rounds whose verdicts never led to anything drafted; a forward takes as long as a step."""
    control = measured(policy, acceptance=0.6)
    for _ in range(40):
        control.recovered(False)
        control.forwarded(1, STEP)
    return control
