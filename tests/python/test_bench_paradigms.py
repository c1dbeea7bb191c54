"""Paradigms side by side: the plan of runs, their order, identity, figures."""

from __future__ import annotations

import dataclasses

import pytest

from acespec_edge.errors import LinkError, UsageError
from tests.python.paradigm_kit import CELL, FakeRunner, field_of, visited
from tools.bench.paradigms import report
from tools.bench.paradigms.compare import first_mismatch
from tools.bench.paradigms.grid import Cell, parse_grid
from tools.bench.paradigms.paradigms import (
    DEFAULT,
    PARADIGMS,
    QUICK,
    Sweep,
    contenders,
    parse_sweep,
)
from tools.bench.paradigms.runs import Run
from tools.bench.paradigms.summary import gaps_of, quantile, rows_of


def test_a_grid_is_every_delay_with_every_rate() -> None:
    assert parse_grid(["rtt=20,100ms", "bw=50k,1mbit"]) == [
        Cell(20, 50e3, 500e3),
        Cell(100, 50e3, 500e3),
        Cell(20, 1e6, 10e6),
        Cell(100, 1e6, 10e6),
    ]
    assert parse_grid(["bw=2.5m", "down=1g,100"]) == [Cell(100, 2.5e6, 1e9), Cell(100, 2.5e6, 100)]
    assert parse_grid(["rtt=0"]) == [Cell(0, 1e6, 1e7)]
    assert str(Cell(20, 50e3, 5e5)) == "RTT 20 ms, 50 kbit/s up, 500 kbit/s down"


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (["rtt=fast"], "rtt is 'fast'"),
        (["rtt=-5"], "rtt is '-5'"),
        (["bw=0"], "bw is '0'"),
        (["bw=1t"], "bw is '1t'"),
        (["bw="], "bw is ''"),
        (["down=unlimited"], "down is 'unlimited'"),
        (["jitter=5"], "grid has 'jitter=5'"),
        (["rtt=5", "rtt=6"], "grid has rtt twice"),
    ],
)
def test_a_bad_grid_is_named(parts: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_grid(parts)


def test_the_target_alone_always_runs_and_first() -> None:
    assert [found.label for found in contenders(["auto", "vanilla"], 0.0)] == ["cloud", "auto", "vanilla"]
    assert [found.label for found in contenders(["auto", "cloud"], 0.5)] == ["cloud T=0.5", "auto"]
    for names in (DEFAULT, QUICK):
        assert {found.label for found in contenders(names, 0.0)} == set(names)
    with pytest.raises(UsageError, match="paradigms has 'fastest'"):
        contenders(["fastest"], 0.0)
    with pytest.raises(UsageError, match="auto is given twice"):
        contenders(["auto", "auto"], 0.0)


def test_a_sweep_varies_the_measured_arm() -> None:
    budgets = contenders([], 0.0, parse_sweep("budget=10,20"))
    assert [(found.label, found.budget) for found in budgets] == [
        ("cloud", None),
        ("acespec-measured B=10", 10),
        ("acespec-measured B=20", 20),
    ]
    hot = contenders([], 0.0, parse_sweep("temperature=0,0.3"))
    assert [(found.label, found.temperature) for found in hot] == [
        ("cloud", 0.0),
        ("cloud T=0.3", 0.3),
        ("acespec-measured T=0", 0.0),
        ("acespec-measured T=0.3", 0.3),
    ]
    assert parse_sweep("budget=10") == Sweep("budget", (10.0,))


@pytest.mark.parametrize(
    "text", ["budget=", "budget=1.5", "budget=0", "temperature=-1", "width=4", "budget=x"]
)
def test_a_bad_sweep_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"sweep is|temperature is -1"):
        parse_sweep(text)


def test_who_must_repeat_the_target() -> None:
    exact = {name for name, paradigm in PARADIGMS.items() if paradigm.repeats_the_target(0.0)}
    assert exact == set(PARADIGMS) - {"edge", "split"}
    sampled = {name for name, paradigm in PARADIGMS.items() if paradigm.repeats_the_target(1.0)}
    assert sampled == exact - {"vanilla", "dssd"}
    assert PARADIGMS["dssd"].sampling(0.0) == "residual" and PARADIGMS["vanilla"].sampling(0.0) == "coupled"


def test_contenders_take_turns_at_every_question() -> None:
    log: list[str] = []
    comparison = visited([FakeRunner(name, log) for name in ("cloud", "auto", "edge")])
    assert log[:3] == ["cloud q0", "auto q0", "edge q0"]  # not counted
    assert log[3:] == [
        "cloud q0", "auto q0", "edge q0",
        "auto q1", "edge q1", "cloud q1",
        "edge q0", "cloud q0", "auto q0",
        "cloud q1", "auto q1", "edge q1",
    ]  # fmt: skip
    ((_, tallies),) = comparison.results
    assert [[len(runs) for runs in tally.repeats] for tally in tallies] == [[2, 2]] * 3
    assert [tally.checked for tally in tallies] == [4, 4, 0]
    assert all(run.target_forwards == 3 for tally in tallies for runs in tally.repeats for run in runs)


def test_a_wrong_token_is_found_and_a_tie_forgiven() -> None:
    for leads, wrong in ((1.0, True), (1e-6, False)):
        log: list[str] = []
        runners = [FakeRunner("cloud", log), FakeRunner("auto", log, [5, 6, 9, 8])]
        ((_, (alone, auto)),) = visited(runners, 1, 1, leads).results
        assert not alone.wrong and auto.wrong is wrong
        assert [(found.position, found.expected, found.got) for found in auto.mismatches] == [(2, 7, 9)]
    short = [FakeRunner("cloud", []), FakeRunner("auto", [], [5, 6, 7])]
    assert visited(short, 1, 1, 1e-6).results[0][1][1].wrong  # the end of a text is no tie


def test_the_target_must_repeat_itself_in_every_repeat_and_cell() -> None:
    cloud = FakeRunner("cloud", [])
    comparison = visited([cloud], 1, 1)
    cloud.ids = [5, 6, 7, 9]
    comparison.visit(Cell(20, 1e6, 1e7), field_of([cloud]))
    assert [tallies[0].wrong for _, tallies in comparison.results] == [False, True]


def test_rounding_is_told_and_the_edges_own_text_is_not_compared() -> None:
    other = [5, 9, 9, 9]
    runners = [FakeRunner("cloud", []), FakeRunner("split", [], other), FakeRunner("edge", [], other)]
    ((_, (_, split, edge)),) = visited(runners, 1, 1).results
    assert split.checked == len(split.mismatches) == 1 and not split.wrong
    assert edge.checked == 0 and not edge.wrong
    text = report.tables(rows_of(CELL, [*visited(runners, 1, 1).results[0][1]]))
    assert "rounding: split, q0, token 1: target 6, got 9" in text and "its own text" in text


def test_who_fails_rests_and_the_target_alone_must_not() -> None:
    log: list[str] = []
    runners = [FakeRunner("cloud", log), FakeRunner("auto", log)]
    runners[1].fails_at = 2
    ((_, (_, auto)),) = visited(runners).results
    assert auto.failure == "the link broke" and runners[1].calls == 3
    assert [len(runs) for runs in auto.repeats] == [1, 0]
    rows = rows_of(CELL, visited(runners).results[0][1])
    assert rows[1]["failure"] and rows[1]["tokens_per_second"] is None
    runners[0].fails_at = 0
    with pytest.raises(LinkError, match="the link broke"):
        visited(runners)


def test_first_mismatch() -> None:
    assert first_mismatch([1, 2], [1, 2], "q", 0) is None
    found = first_mismatch([1], [1, 2], "q", 3)
    assert found is not None and (found.position, found.expected, found.got, found.repeat) == (1, None, 2, 3)


def test_medians_over_repeats_of_figures_over_all_answers() -> None:
    cloud, auto = (FakeRunner(name, []) for name in ("cloud", "auto"))
    comparison = visited([cloud, auto], 1, 3)
    ((cell, tallies),) = comparison.results
    alone, fast = tallies
    # 4 tokens in 0.4 s, in 0.8 s, in 1.6 s; the other three times as fast but once.
    for repeat, (slow, factor) in enumerate(((0.1, 3.0), (0.2, 3.0), (0.4, 8.0))):
        for tally, pace in ((alone, slow), (fast, slow / factor)):
            (run,) = tally.repeats[repeat]
            tally.repeats[repeat] = [
                dataclasses.replace(run, shown=[pace * (1 + place) for place in range(4)])
            ]
    first, second = rows_of(cell, tallies)
    assert first["tokens_per_second"] == pytest.approx(5.0) and first["speedup"] == 1.0
    assert first["ttft_ms"] == pytest.approx(200.0) and first["gap_p99_ms"] == pytest.approx(200.0)
    assert second["tokens_per_second"] == pytest.approx(20.0) and second["speedup"] == pytest.approx(3.0)
    assert (second["up_bytes_per_token"], second["down_bytes_per_token"]) == (10.0, 20.0)
    assert second["accepted_per_round"] == 1.5 and second["target_forwards_per_token"] == 0.75
    assert second["drafter_forwards_per_token"] is None
    assert second["identity"]["identical"] == second["identity"]["checked"] == 3


def test_gaps_are_between_tokens_as_they_are_shown() -> None:
    run = Run([1, 2, 3, 4], [0.5, 0.5, 0.5, 0.9], 0, 0)
    assert gaps_of([run]) == pytest.approx([0.0, 0.0, 0.4])
    assert quantile([0.4, 0.0, 0.0], 0.5) == 0.0 and quantile([0.4, 0.0, 0.0], 0.99) == 0.4
    assert quantile([], 0.5) is None
    hundred = [float(value) for value in range(1, 101)]
    assert [quantile(hundred, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]


def test_choices_are_shares_of_rounds() -> None:
    ((_, tallies),) = visited([FakeRunner("cloud", []), FakeRunner("auto", [])], 2, 1).results
    runs = tallies[1].repeats[0]
    runs[0] = dataclasses.replace(runs[0], rounds=30, chosen={"chain": 30}, why="first")
    runs[1] = dataclasses.replace(runs[1], rounds=10, chosen={"tree": 10}, why="RTT is 20 ms.")
    row = rows_of(CELL, tallies)[1]
    assert row["chosen"] == {"chain": 0.75, "tree": 0.25} and row["why"] == "RTT is 20 ms."
    assert "auto chose chain 75%, tree 25%. RTT is 20 ms." in report.tables([row])
