"""Profiles: lines between the figures, sources with all of them, bad files refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acespec_edge.errors import UsageError
from acespec_edge.simulate.profiles import THIS_MACHINE, EdgeProfile, cloud_profile, edge_profile, names
from tests.python.simulate_kit import trace


def test_forwards_between_and_beyond_the_figures_lie_on_lines() -> None:
    profile = EdgeProfile("any", {8: 20.0, 1: 6.0, 16: 60.0})
    expected = {1: 6.0, 2: 8.0, 8: 20.0, 12: 40.0, 16: 60.0, 18: 70.0}
    assert {rows: 1e3 * profile.seconds(rows) for rows in expected} == pytest.approx(expected)
    assert EdgeProfile("one figure", {1: 5.0}).seconds(64) == 0.005
    # Measured times may fall; what lies beyond them does not.
    noisy = EdgeProfile("noisy", {1: 6.0, 2: 5.0})
    assert (noisy.seconds(2), noisy.seconds(4)) == (0.005, 0.005)


def test_a_cloud_takes_a_base_and_so_much_for_each_node() -> None:
    profile = cloud_profile("150,1.5")
    assert profile.seconds(0) == 0.15
    assert profile.seconds(10) == pytest.approx(0.165)
    assert profile.prefill_seconds(100) == 0.15
    assert cloud_profile("150,1.5,2").prefill_seconds(100) == pytest.approx(0.35)


def test_every_built_in_profile_names_its_sources() -> None:
    for kind, read in (("edge", edge_profile), ("cloud", cloud_profile)):
        assert len(names(kind)) >= 4
        for name in names(kind):
            profile = read(name)
            assert len(" ".join(profile.sources)) > 60, name
            assert profile.seconds(1) > 0


def test_this_machine_is_what_the_trace_was_recorded_on() -> None:
    assert edge_profile(THIS_MACHINE, trace()).seconds(8) == pytest.approx(0.017)
    cloud = cloud_profile(THIS_MACHINE, trace())
    assert [cloud.seconds(nodes) for nodes in (0, 5, 10, 20)] == pytest.approx([0.1, 0.11, 0.12, 0.14])
    assert cloud.prefill_seconds(10) == pytest.approx(0.115)
    with pytest.raises(UsageError, match="no timing"):
        edge_profile(THIS_MACHINE)


def test_a_file_is_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"forward_ms": {"1": 3, "4": 6}, "sources": ["a stopwatch"]}))
    profile = edge_profile(str(path))
    assert (profile.seconds(2), profile.sources) == (0.004, ("a stopwatch",))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "not a usable profile"),
        ("[]", "JSON object"),
        ("{}", "forward_ms is None"),
        ('{"forward_ms": {"2": 3}}', "milliseconds by rows"),
        ('{"forward_ms": {"1": 0}}', "milliseconds by rows"),
        ('{"forward_ms": {"1": "fast"}}', "milliseconds by rows"),
        ('{"forward_ms": {"1": 3}, "sources": "me"}', "sources is 'me'"),
    ],
)
def test_bad_edge_files_are_refused_by_name(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=what) as caught:
        edge_profile(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("a100", "one of a100-32b"),
        ("150,", "BASE,PER_NODE"),
        ("150,-1", "BASE,PER_NODE"),
        ("1,2,3,4", "BASE,PER_NODE"),
        ("1,nan", "BASE,PER_NODE"),
    ],
)
def test_bad_cloud_names_are_refused(name: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        cloud_profile(name)


@pytest.mark.parametrize("value", [None, -1, True, "x", 1e999])
def test_bad_cloud_figures_are_refused(tmp_path: Path, value: object) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"base_ms": 1, "per_node_ms": value, "prefill_ms": 1}))
    with pytest.raises(UsageError, match="per_node_ms"):
        cloud_profile(str(path))
