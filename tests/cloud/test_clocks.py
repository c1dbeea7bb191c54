"""The two machines' clocks have nothing to do with each other, nor with the time of day."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import acespec_edge
import cloud_stub
from acespec_edge import _core
from tests.cloud.rig import hashed_logits, plain_greedy, scripted_rig
from tests.cloud.test_pair import PROMPT, Pair

WALL_CLOCKS = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}
FOR_PEOPLE = {"acespec_edge/chat.py", "gateway/stamp.py", "commands/doctor.py"}
"""Templates may ask for the date, answers of the gateway bear it, and the doctor looks whether it is set."""


@pytest.mark.parametrize("ahead", [-90.0, 0.0, 90.0])
def test_w4_clocks_apart_change_nothing(ahead: float) -> None:
    """The edge's clock shows 100 s more or less than the cloud's, and goes on from there."""
    pair = Pair(scripted_rig())
    pair.now = 1000.0 + ahead
    pair.open(list(PROMPT), max_tokens=12)
    truth = plain_greedy(hashed_logits(16), PROMPT, 12)
    while pair.finish == _core.Finish.none:
        pair.rig.scheduler.run()
        for event in pair.deliver():
            assert event.round_trip is not None and 0.0 <= event.round_trip <= 0.011
        if pair.finish == _core.Finish.none:
            done = len(pair.committed) - len(PROMPT)
            pair.up(pair.edge.draft(truth[done : done + 2], at=pair.now))
    assert pair.committed == PROMPT + truth


def test_w4_no_decision_asks_for_the_time_of_day() -> None:
    files = [
        path
        for package in (acespec_edge, cloud_stub)
        for path in Path(package.__path__[0]).rglob("*.py")
        if "/".join(path.parts[-2:]) not in FOR_PEOPLE
    ]
    assert len(files) > 40
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                owner = node.value.attr if isinstance(node.value, ast.Attribute) else None
                owner = node.value.id if isinstance(node.value, ast.Name) else owner
                assert (owner, node.attr) not in WALL_CLOCKS, f"{path}:{node.lineno}"
