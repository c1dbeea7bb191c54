"""Traces on disk: what is written is read, and what is damaged is refused by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec_edge.errors import UsageError
from acespec_edge.simulate.shipped import opened
from acespec_edge.simulate.trace import Trace, descending
from tests.python.simulate_kit import trace


@pytest.mark.parametrize("vocabulary", [64, 1 << 16, 151_936])
def test_what_is_saved_is_loaded(tmp_path: Path, vocabulary: int) -> None:
    written = dataclasses.replace(trace(), vocabulary=vocabulary, temperature=0.5)
    written.save(tmp_path / "a.trace")
    read = Trace.load(tmp_path / "a.trace")
    assert dataclasses.replace(read, records=()) == dataclasses.replace(written, records=())
    for mine, theirs in zip(read.records, written.records, strict=True):
        assert (mine.id, mine.kind, mine.seed) == (theirs.id, theirs.kind, theirs.seed)
        assert (mine.prompt, mine.text) == (theirs.prompt, theirs.text)
        np.testing.assert_array_equal(mine.top, theirs.top)
        np.testing.assert_allclose(mine.scores, theirs.scores, rtol=2e-3)


def test_a_small_vocabulary_takes_two_bytes_an_id(tmp_path: Path) -> None:
    trace().save(tmp_path / "small")
    dataclasses.replace(trace(), vocabulary=1 << 17).save(tmp_path / "large")
    entries = sum(record.top.size + len(record.prompt) + len(record.text) for record in trace().records)
    small, large = ((tmp_path / name).stat().st_size for name in ("small", "large"))
    assert abs(large - small - 2 * entries) < 64


def test_matches_count_the_drafters_ranks() -> None:
    shares = trace(records=2, tokens=400, right=0.7).matches()
    assert set(shares) == {"chat", "code"}
    for first, second, *rest in shares.values():
        assert first == pytest.approx(0.7, abs=0.08)
        assert [second, *rest] == [1.0] * 3


@given(st.lists(st.lists(st.floats(-60, 0), min_size=3, max_size=3), min_size=1, max_size=5))
def test_scores_fall_strictly_along_a_row(rows: list[list[float]]) -> None:
    rounded = np.sort(np.array(rows, np.float16).astype(np.float32))[:, ::-1]
    falling = descending(rounded)
    assert (np.diff(falling, axis=1) < 0).all()
    np.testing.assert_allclose(falling, rounded, atol=1e-4)


def changed_header(path: Path, change: dict[str, object]) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    about = json.loads(header["__metadata__"]["acespec_trace"]) | change
    header["__metadata__"]["acespec_trace"] = json.dumps(about)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"version": 2}, "version 2"),
        ({"vocabulary": 5}, "outside its vocabulary of 5"),
        ({"records": []}, "0 records"),
        ({"timing": {"edge_ms": {"1": -3}, "cloud_ms": {}, "prefill_ms": 0}}, "no times"),
        ({"timing": {"edge_ms": {}, "cloud_ms": {}, "prefill_ms": -1}}, "no times"),
        ({"timing": {"edge_ms": {}, "cloud_ms": {}}}, "lacks 'prefill_ms'"),
        ({"stop_ids": None}, "not a usable trace"),
    ],
)
def test_what_the_header_gets_wrong_is_named(tmp_path: Path, change: dict[str, object], what: str) -> None:
    path = tmp_path / "a.trace"
    trace().save(path)
    changed_header(path, change)
    with pytest.raises(UsageError, match=what) as caught:
        Trace.load(path)
    assert str(path) in str(caught.value)


def test_damage_is_refused_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    trace(records=1, tokens=3).save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(UsageError, match="not a usable trace"):
            Trace.load(path)
    with pytest.raises(UsageError, match=r"nowhere\.trace"):
        Trace.load(tmp_path / "nowhere.trace")
    with pytest.raises(UsageError, match="cannot be written"):
        trace().save(tmp_path / "no folder" / "a.trace")


def test_the_built_in_trace_is_small_and_sound() -> None:
    shipped = opened(None)
    assert shipped.pair == "smollm2"
    assert {record.kind for record in shipped.records} == {"code", "math", "chat"}
    assert all(0.3 < shares[0] < 1.0 for shares in shipped.matches().values())
    assert shipped.timing.edge_ms[1] > 0
