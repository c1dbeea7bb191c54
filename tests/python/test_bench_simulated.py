"""Simulated figures beside measured ones."""

from __future__ import annotations

from typing import Any

import pytest

from acespec_edge.errors import UsageError
from acespec_edge.simulate.profiles import EdgeProfile
from tests.python.simulate_kit import trace
from tools.bench.simulated import agreements, comparable

EDGE = EdgeProfile("made up", {1: 10.0, 8: 17.0})
ALONE = 24 / (0.155 + 23 * 0.1)
"""Tokens a second of 24: the first takes as long as was measured, the others a plain step each."""


def row(paradigm: str, **more: Any) -> dict[str, Any]:
    cell = {"rtt_ms": 40.0, "up_bps": 1e6, "down_bps": 1e7, "temperature": 0.0}
    return {"paradigm": paradigm, **cell, "tokens_per_second": 1.0, "ttft_ms": 155.0, **more}


def document(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    prompts = ["made-up/1", "made-up/0"]
    return {"prompts": prompts, "tokens": 24, "verify_ms": [100.0, 2.0], "rows": list(rows), **more}


def test_what_the_simulator_measured_itself_agrees() -> None:
    answers = trace(2)
    found = list(agreements(document(row("cloud"), row("auto")), answers, EDGE, lambda _: None))
    assert [one.paradigm for one in found] == ["cloud", "auto"]
    assert found[0].ratio == pytest.approx(ALONE, rel=0.01)
    again = document(row("auto", tokens_per_second=found[1].simulated), row("cloud"))
    assert next(agreements(again, answers, EDGE, lambda _: None)).ratio == 1


def test_what_is_no_policy_or_sampled_or_failed_is_left_out() -> None:
    others = ("split", "dssd", "colocated", "auto+dlite", "auto+useless", "lookup", "edge")
    rows = [row(name) for name in ("cloud", *others)]
    rows += [row("chain", temperature=1.0), row("tree", tokens_per_second=None)]
    assert [one["paradigm"] for one in comparable(document(*rows))] == ["cloud"]


def test_a_prompt_that_was_not_recorded_is_named() -> None:
    with pytest.raises(UsageError, match="no answer to made-up/1"):
        next(agreements(document(row("cloud")), trace(1), EDGE, lambda _: None))


def test_an_unpadded_target_takes_the_traces_own_time() -> None:
    unpadded = document(row("cloud"), verify_ms=[0.0, 0.0])
    assert next(agreements(unpadded, trace(2), EDGE, lambda _: None)).simulated == pytest.approx(
        ALONE, rel=0.01
    )
