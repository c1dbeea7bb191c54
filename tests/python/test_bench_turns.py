"""The measurement of turns, over fakes: what it says, and that it tells when answers differ."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from cloud_stub.local import LocalLink
from cloud_stub.service import Service
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.python.fake_bundle import make_bundle
from tests.python.fakes import FakeDrafter, mixing
from tools.bench import turns
from tools.bench.pairs import Loaded

TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
CHOOSE = mixing(1, vocabulary=40)


def set_up(
    monkeypatch: pytest.MonkeyPatch, bundle: Bundle, choose: Callable[[Sequence[int]], int] = CHOOSE
) -> None:
    size = bundle.vocabulary_table.size

    def logits_of(tokens: Sequence[int]) -> Any:
        return np.eye(size, dtype=np.float32)[choose(tokens)]

    def link() -> LocalLink:
        return LocalLink(Service(ScriptedVerifier(logits_of, bundle.vocabulary_table, max_context=8192)))

    def runtime(bundle: Bundle, connector: Any, context: int) -> EdgeRuntime:
        return EdgeRuntime(bundle, connector, drafter=FakeDrafter(CHOOSE, context=context), context=context)

    monkeypatch.setattr(turns, "load_pair", lambda name: Loaded(bundle, None, link))
    monkeypatch.setattr(turns, "EdgeRuntime", runtime)


def test_turns_are_kept_and_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(monkeypatch, make_bundle(tmp_path / "bundle", eos_ids=(), chat_template=TEMPLATE))
    assert turns.main(["--turns", "3", "--tokens", "8", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["turn"] for row in rows] == [1, 2, 3] and all(row["identical"] for row in rows)
    assert rows[0]["reused_cloud"] == 0
    for before, row in itertools.pairwise(rows):
        assert before["prompt_tokens"] <= row["reused_cloud"] < row["prompt_tokens"]
        assert row["bytes_up"] < row["bytes_up_alone"]
    assert turns.main(["--turns", "1", "--tokens", "2"]) == 0
    assert "first token, ms" in capsys.readouterr().out


def test_answers_that_differ_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = iter(range(1 << 30))
    set_up(
        monkeypatch,
        make_bundle(tmp_path / "bundle", eos_ids=(), chat_template=TEMPLATE),
        lambda tokens: next(calls) % 40,
    )
    assert turns.main(["--turns", "1", "--tokens", "4"]) == 1
    assert "DIFFERENT" in capsys.readouterr().out
