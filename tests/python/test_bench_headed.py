"""Paradigms beside a cloud with a head, and what a block takes by the length of the context."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from acespec_edge import _core
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import UsageError
from cloud_stub.continuation import SelfDrafting
from cloud_stub.scheduler import Pacing
from cloud_stub.verifiers.torch_verifier import TorchHandle, TorchVerifier
from tests.python.edge_kit import PROMPT
from tests.python.fake_bundle import make_bundle
from tests.python.paradigm_kit import CELL, FakeRunner, small, visited
from tools.bench.context import Point, context_ids, measured, parse_lengths
from tools.bench.data import long_prompts
from tools.bench.pairs import PAIRS
from tools.bench.paradigms.cloud import serving
from tools.bench.paradigms.paradigms import contenders
from tools.bench.paradigms.stage import _forwards, staged
from tools.bench.paradigms.summary import rows_of

pytestmark = pytest.mark.usefixtures("threads_end")


@pytest.fixture
def verifier(tmp_path: Path) -> TorchVerifier:
    bundle = make_bundle(tmp_path / "small", eos_ids=())
    return TorchVerifier(small("llama"), bundle.vocabulary_table, name="small", max_context=200)


class Repeating:
    """Guesses that the text repeats one token."""

    longest = 3

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def propose(
        self, handle: Any, tip: int, position: int, rules: _core.SamplingRules, count: int, least: float
    ) -> list[int]:
        assert isinstance(handle, TorchHandle) and handle.length == position - 1
        self.asked.append((position, count))
        return [tip] * count


def test_a_headed_cloud_stands_beside_the_plain_one(verifier: TorchVerifier, tmp_path: Path) -> None:
    bundle, head = make_bundle(tmp_path / "bundle", eos_ids=()), Repeating()
    texts = []
    with serving(verifier, Pacing(), SelfDrafting(head)) as addresses:
        for name in ("spec", "headed"):
            assert not head.asked
            with EdgeRuntime(bundle, f"ws://{addresses[name]}/v1/spec", mode="cloud") as edge:
                texts.append(edge.generate(PROMPT, max_tokens=12).token_ids)
        assert _forwards(addresses["spec"]) == 12 and 0 < _forwards(addresses["headed"]) <= 12
    assert texts[0] == texts[1] and head.asked
    with serving(verifier, Pacing()) as addresses:
        assert "headed" not in addresses


def test_the_target_alone_is_the_measure_also_of_a_cloud_with_a_head() -> None:
    runners = [FakeRunner("cloud", []), FakeRunner("cloud+dlite", [], pace=0.05)]
    ((_, tallies),) = visited(runners).results
    alone, headed = rows_of(CELL, tallies)
    assert alone["speedup"] == 1.0 and headed["speedup"] == pytest.approx(2.0)
    assert headed["identity"]["checked"] == headed["identity"]["identical"] == 4
    runners[1].fails_at = 0
    assert visited(runners).results[0][1][1].failure == "the link broke", "only the baseline must not fail"


def test_a_head_must_be_given_where_one_is_needed() -> None:
    with (
        pytest.raises(UsageError, match=r"dlite is not given, and auto\+dlite needs a head"),
        staged(PAIRS["smollm2"], contenders(["auto+dlite"], 0.0), None),
    ):
        pass


# The time of a block.


def test_both_are_timed_at_the_end_of_each_context(verifier: TorchVerifier) -> None:
    head, ticks = Repeating(), iter(range(10_000))
    ids = [number % 60 for number in range(90)]
    points = measured(head, verifier, verifier, ids, [20, 40, 90], 2, clock=lambda: next(ticks) / 10)
    assert points == [Point(length, 3, pytest.approx(100), pytest.approx(100)) for length in (20, 40, 90)]
    assert [position for position, _ in head.asked[:3]] == [11, 14, 17], "the last block ends at the length"
    assert head.asked[-1] == (87, 3)


def test_two_models_read_the_same_context(verifier: TorchVerifier, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "other", eos_ids=())
    other = TorchVerifier(small("qwen2"), bundle.vocabulary_table, name="other", max_context=200)
    points = measured(Repeating(), verifier, other, list(range(60)), [30, 60], 1)
    assert [point.tokens for point in points] == [30, 60]
    assert all(point.head_ms >= 0 and point.model_ms > 0 for point in points)


@pytest.mark.parametrize("text", ["", "5,5", "9,3", "1,2", "2,x", "-4"])
def test_lengths_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="lengths is"):
        parse_lengths(text)


def test_a_context_is_as_many_prompts_as_it_takes(tmp_path: Path) -> None:
    assert context_ids(iter([[1, 2, 3], [4, 5]]), 4) == [1, 2, 3, 4]
    with pytest.raises(UsageError, match="lengths has 6: the prompts have 5 tokens"):
        context_ids(iter([[1, 2, 3], [4, 5]]), 6)
    names = ("sweagent_steps", "taubench_airline20", "qmsum_long5")
    for name in names:
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"id": name, "prompt": f"of {name}"}))
    assert list(long_prompts(tmp_path)) == [f"of {name}" for name in names]
    (tmp_path / "qmsum_long5.jsonl").unlink()
    with pytest.raises(UsageError, match=r"qmsum_long5.jsonl: No such file"):
        list(long_prompts(tmp_path))
