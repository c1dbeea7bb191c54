"""The command that compares paradigms: documents, exit statuses, interrupts."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acespec_edge.errors import UsageError
from tests.python.fake_bundle import make_bundle
from tests.python.paradigm_kit import TEXT, FakeRunner, field_of
from tools.bench.paradigms import __main__ as program
from tools.bench.paradigms import report
from tools.bench.paradigms.grid import Cell
from tools.bench.paradigms.paradigms import (
    PARADIGMS,
    QUICK,
)
from tools.bench.paradigms.runs import Field, Question, Run

pytestmark = pytest.mark.usefixtures("threads_end")


@pytest.fixture
def fake_stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, FakeRunner]:
    """The command with runners in place of models; those of the default paradigms."""
    runners = {name: FakeRunner(name, []) for name in PARADIGMS}

    @contextlib.contextmanager
    def opened(cell: Cell) -> Iterator[Field]:
        yield field_of(list(runners.values()))

    @contextlib.contextmanager
    def staged(*_: Any) -> Iterator[Any]:
        yield opened

    monkeypatch.setattr(program, "staged", staged)
    monkeypatch.setattr(program, "bundle_of", lambda pair: make_bundle(tmp_path / "bundle"))
    return runners


def test_the_quick_setting_and_its_document(
    fake_stage: dict[str, FakeRunner], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert program.main(["--quick", "--json", str(out), "--emulate-verify-ms", "7,2"]) == 0
    document = report.load(out)
    assert document["complete"] and document["pair"] == "smollm2" and document["verify_ms"] == [7.0, 2.0]
    assert document["tokens"] == 32 and document["repeat"] == 1 and len(document["prompts"]) == 2
    assert [(row["label"], row["rtt_ms"]) for row in document["rows"]] == [
        (name, rtt) for rtt in (20.0, 100.0) for name in QUICK
    ]
    printed = capsys.readouterr().out
    assert "RTT 20 ms, 1 Mbit/s up, 10 Mbit/s down" in printed and "x cloud" in printed


def test_a_mismatch_is_exit_status_1(fake_stage: dict[str, FakeRunner], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    fake_stage["vanilla"].ids = [5, 6, 0, 8]
    assert program.main(["--quick", "--json", str(out)]) == 1
    rows = [row for row in report.load(out)["rows"] if row["label"] == "vanilla"]
    assert [row["identity"]["identical"] for row in rows] == [0, 0]
    assert rows[0]["identity"]["differences"][0]["position"] == 2
    fake_stage["vanilla"].ids = TEXT
    fake_stage["auto"].fails_at = 1
    assert program.main(["--quick"]) == 1


def test_an_interrupt_leaves_what_was_measured(fake_stage: dict[str, FakeRunner], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    auto = fake_stage["auto"]
    plainly = auto.run

    def interrupted(question: Question, temperature: float) -> Run:
        if auto.calls == 4:  # within the second cell
            raise KeyboardInterrupt
        return plainly(question, temperature)

    auto.run = interrupted  # type: ignore[method-assign]
    assert program.main(["--quick", "--json", str(out)]) == 130
    document = report.load(out)
    assert not document["complete"]
    assert {row["rtt_ms"] for row in document["rows"] if row["answers"]} >= {20.0}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--limit", "0"],
        ["--tokens", "0"],
        ["--repeat", "0"],
        ["--grid", "rtt=x"],
        ["--paradigms", "none"],
        ["--sweep", "budget=1", "--paradigms", "auto"],
        ["--temperature", "-1"],
        ["--emulate-verify-ms", "slow"],
        ["--data", "/nowhere", "--prompts", "/nowhere"],
        ["--prompts", "/nowhere"],
    ],
)
def test_bad_options_are_exit_status_2(fake_stage: dict[str, FakeRunner], arguments: list[str]) -> None:
    assert program.main(arguments) == 2


def test_a_sweep_from_the_command(fake_stage: dict[str, FakeRunner], tmp_path: Path) -> None:
    fake_stage["acespec-measured B=10"] = FakeRunner("acespec-measured B=10", [])
    out = tmp_path / "out.json"
    assert program.main(["--quick", "--sweep", "budget=10", "--json", str(out)]) == 0
    document = report.load(out)
    assert document["sweep"] == {"name": "budget", "values": [10.0]}
    assert [row["budget"] for row in document["rows"]] == [None, 10, None, 10]


def test_prompts_of_a_kind(fake_stage: dict[str, FakeRunner], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert program.main(["--quick", "--kind", "math", "--json", str(out)]) == 0
    assert report.load(out)["prompts"] == ["math-01", "math-02"]
    (tmp_path / "own.jsonl").write_text('{"id": "a", "kind": "poem", "prompt": "x"}\n')
    assert program.main(["--prompts", str(tmp_path / "own.jsonl")]) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "no result of"),
        ({"version": 9}, "version 9"),
        ({"pair": None}, "pair is None"),
        ({"verify_ms": [1]}, "verify_ms is"),
        ({"rows": [{}]}, "row 0: rtt_ms is None"),
        ({"rows": [3]}, "row 0: no object"),
    ],
)
def test_a_bad_document_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    good = {
        "format": report.FORMAT,
        "version": 1,
        "pair": "p",
        "verify_ms": [0, 0],
        "sweep": None,
        "rows": [],
    }
    path = tmp_path / "r.json"
    path.write_text(json.dumps(good))
    assert report.load(path) == good
    path.write_text(json.dumps({**good, **change}))
    with pytest.raises(UsageError, match=words):
        report.load(path)
    path.write_text("{")
    with pytest.raises(UsageError, match="no JSON"):
        report.load(path)
