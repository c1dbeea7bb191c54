"""The user's own prompts among the invented ones, and training that begins at another head."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec_edge.errors import UsageError
from cloud_stub.dlite.checkpoint import save_head
from cloud_stub.dlite.identity import Identity
from tests.cloud.dlite_kit import cached, configured, make_clock, make_head, make_target, random_texts
from tests.cloud.test_dlite_collecting import Letters
from tools.bench.data import KINDS, Prompt
from tools.train_dlite.collecting import TEXTS, collect
from tools.train_dlite.given import mixed_prompts, varied
from tools.train_dlite.invented import invented_prompts
from tools.train_dlite.settings import CollectSettings, read_settings
from tools.train_dlite.start import adopt_head
from tools.train_dlite.texts import read_texts
from tools.train_dlite.trainer import Trainer

NUMBERS = Prompt("n", "math", "Anna has 12 apples and 345 coins. She eats 12 apples on Monday.")
FIXED = Prompt("f", "chat", "Why is it so?")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def first(rows: list[Prompt], share: float, count: int, seed: int = 1) -> list[Any]:
    return list(itertools.islice(mixed_prompts(rows, share, seed), count))


def test_all_given_prompts_are_asked_as_they_are_before_any_is_varied() -> None:
    rows = [Prompt(f"p{n}", KINDS[n % 3], f"{n} and {n + 100}?") for n in range(20)]
    asked = first(rows, 1.0, 60)
    assert {row.prompt.text for row in asked[:20]} == {row.text for row in rows}
    assert len({row.prompt.text for row in asked}) == len({row.prompt.id for row in asked}) == 60
    assert not any(row.again for row in asked)
    kinds = {row.prompt.id.rpartition("-")[2]: row.prompt.kind for row in asked}
    assert kinds == {row.id: row.kind for row in rows}


def test_what_cannot_be_varied_is_asked_again() -> None:
    asked = first([FIXED, NUMBERS], 1.0, 8)
    again = [row.again for row in asked if row.prompt.text == FIXED.text]
    assert again == [False, True, True, True]
    assert sum(row.again for row in asked) == 3


def test_rows_that_are_there_twice_count_twice() -> None:
    twice = [NUMBERS, Prompt("n2", "math", NUMBERS.text), FIXED]
    counts = Counter(row.prompt.kind for row in first(twice, 1.0, 300))
    assert counts == {"math": 200, "chat": 100}


def test_the_mixture_has_its_share_and_follows_from_the_seed() -> None:
    once, again, other = (first([FIXED, NUMBERS], 0.3, 2000, seed) for seed in (1, 1, 2))
    assert once == again != other
    given_rows = sum(row.prompt.id.startswith("given") for row in once)
    assert 500 < given_rows < 700
    invented = [row.prompt for row in once if not row.prompt.id.startswith("given")]
    assert invented == list(itertools.islice(invented_prompts(1), len(invented)))
    assert [row.prompt for row in first([], 0.3, 50)] == list(itertools.islice(invented_prompts(1), 50))


def test_a_variation_keeps_what_was_the_same_the_same() -> None:
    rng = random.Random(1)
    seen = [varied(NUMBERS.text, rng) for _ in range(50)]
    assert len({*seen}) > 45
    for text in seen:
        found = re.fullmatch(r"(\w+) has (\d\d) (.+) and (\d{3}) (.+)\. She eats \2 \3 on (\w+)\.", text)
        assert found is not None, text
        assert found[6].endswith("day")
    assert len({text.split()[0] for text in seen}) > 10


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab 0123456789.,_:x", max_size=60), st.integers(0, 99))
def test_only_whole_numbers_that_stand_alone_change(text: str, seed: int) -> None:
    changed = varied(text, random.Random(seed))
    assert len(changed) == len(text)
    for before, after in zip(re.split(r"[ ,:]+", text), re.split(r"[ ,:]+", changed), strict=True):
        if not re.fullmatch(r"\d+\.?", before):
            assert before == after or "." in before
    assert [re.sub(r"\d", "0", part) for part in (text, changed)].count(re.sub(r"\d", "0", text)) == 2


def collected(folder: Path, stop: int | None = None, **changes: Any) -> None:
    calls = itertools.count()

    def advance(tokens: int) -> None:
        if next(calls) == stop:
            raise KeyboardInterrupt

    values: dict[str, Any] = {"tokens": 200, "max_tokens": 12, "batch": 5, "greedy": 1.0, "dtype": "float32"}
    given_rows = [NUMBERS, FIXED]
    collect(make_target(), Letters(), (1,), CollectSettings(**values | changes), folder, advance, given_rows)


def test_given_prompts_are_collected_and_an_interruption_changes_nothing(tmp_path: Path) -> None:
    collected(tmp_path / "whole", temperature=5.0)
    texts = list(read_texts(tmp_path / "whole" / TEXTS))
    origins = Counter(text.id.partition("-")[0] for text in texts)
    assert origins["given"] > origins["invented"] > 0
    answers = [tuple(text.response) for text in texts if text.prompt == Letters().ids(FIXED.text)]
    assert len({*answers}) == len(answers) > 3, "the first is greedy, the others are drawn"
    with pytest.raises(KeyboardInterrupt):
        collected(tmp_path / "part", 2, temperature=5.0)
    collected(tmp_path / "part", temperature=5.0)
    for name in ("states.f16", TEXTS):
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_the_targets_own_questions_begin_as_given_ones_do(tmp_path: Path) -> None:
    collected(tmp_path, own=1.0, given=0.2, tokens=500)
    own = [text.prompt for text in read_texts(tmp_path / TEXTS) if text.id.startswith("own")]
    starts = [Letters().ids(prompt.text)[2] for prompt in (NUMBERS, FIXED)]
    assert sum(prompt[2] in starts for prompt in own) > len(own) / 2 > 3
    assert all(prompt[:2] == [1, 2] and prompt[-1] == 3 for prompt in own)


def test_a_head_begins_as_another_of_its_shape(tmp_path: Path) -> None:
    target = make_target()
    source = make_head(target)
    save_head(tmp_path, source, Identity.of(target), dtype=torch.float32)
    head = make_head(target, seed=6)
    adopt_head(head, str(tmp_path), target)
    for name, value in source.trained().items():
        assert torch.equal(head.trained()[name], value), name
    other = make_head(target, seed=6, draft_vocabulary=16)
    adopt_head(other, str(tmp_path), target)
    assert torch.equal(other.norm.weight, source.norm.weight) and len(other.draft_ids) == 16
    for changes, words in ((dict(rnn=False), "rnn.*absent by model"), (dict(rank=4), "rnn.*by model")):
        with pytest.raises(UsageError, match=f"train.start is .*{words}"):
            adopt_head(make_head(target, **changes), str(tmp_path), target)
    with pytest.raises(UsageError, match="'no-head' is no folder"):
        adopt_head(head, "no-head", target)


def test_training_goes_on_from_a_head(tmp_path: Path) -> None:
    verifier = make_clock()
    few = configured(tmp_path, "train.epochs=[0,0,1]", "train.learning_rate=1e-9")
    opened = cached(verifier, random_texts(), few, tmp_path / "cache")
    there = Trainer(few, verifier, opened, tmp_path / "there").run(lambda _: None)
    further = configured(
        tmp_path, "train.epochs=[0,0,1]", "train.learning_rate=1e-9", f"train.start={tmp_path / 'there'}",
        "train.seed=9",
    )  # fmt: skip
    head = Trainer(further, verifier, opened, tmp_path / "further").run(lambda _: None)
    torch.testing.assert_close(head.backbone.placeholder, there.backbone.placeholder, atol=1e-3, rtol=1e-2)


def test_a_start_is_layers_or_a_name() -> None:
    for value, found in (("x", "x"), ("[1,2]", (1, 2)), ("[]", ())):
        assert read_settings("smollm2-135m", [f"train.start={value}"]).train.start == found
    for value in ("2", '["x"]', "true"):
        with pytest.raises(UsageError, match=r"train.start is .*list of whole numbers"):
            read_settings("smollm2-135m", [f"train.start={value}"])
