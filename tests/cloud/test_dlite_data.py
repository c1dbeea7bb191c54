"""What a head is trained on: answers of its target, hidden states on disk, and batches of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from acespec_edge import _core
from acespec_edge.errors import UsageError
from cloud_stub.dlite.identity import Identity
from tests.cloud.dlite_kit import (
    CLOCK_SIZE,
    cached,
    configured,
    following,
    make_clock,
    make_target,
    random_texts,
)
from tests.cloud.test_torch_verifier import SIZE
from tools.bench.data import Prompt
from tools.train_dlite.batches import Texts, check_cache, frequent_ids
from tools.train_dlite.evaluate import decode
from tools.train_dlite.settings import CacheSettings, GenerateSettings
from tools.train_dlite.states import fill, plan, read_index
from tools.train_dlite.texts import Text, generate, read_texts

pytestmark = pytest.mark.usefixtures("one_thread")

GREEDY = _core.SamplingRules()


def test_everything_of_a_batch_is_where_it_should_be(tmp_path: Path) -> None:
    """Features name the token at t, the anchor is t + 1, labels follow it, and the last hidden states are
    those from which the labels were chosen. Off by one, and none of this holds.
    """
    verifier, settings, texts = make_clock(), configured(tmp_path), random_texts()
    opened = cached(verifier, texts, settings, tmp_path / "cache")
    anchors = opened.anchors(range(len(texts)), 100, np.random.default_rng(1))
    assert len(anchors) == sum(len(text.response) - 1 for text in texts), (
        "every place of the answers but the last"
    )
    batch = opened.batch(anchors, 4, torch.device("cpu"))
    matrix = verifier.model.get_output_embeddings().weight
    chosen = torch.nn.functional.linear(batch.last, matrix).argmax(-1)
    assert batch.history is not None
    for row, (number, place) in enumerate(anchors):
        text = [*texts[number].prompt, *texts[number].response]
        assert place >= len(texts[number].prompt), "the assistant's part alone"
        assert batch.features[row].argmax(-1).tolist() == [text[place - 1]] * 2
        assert int(batch.anchors[row]) == text[place]
        labels = text[place + 1 : place + 4]
        assert batch.labels[row].tolist() == labels + [-1] * (3 - len(labels))
        assert (
            chosen[row].tolist()[: len(labels)]
            == [following(token) for token in text[place : place + 3]][: len(labels)]
        )
        first = max(0, len(texts[number].prompt) - 1 - 4)
        past = text[max(first, place - 5) : place - 1]
        known = batch.history.known[row]
        assert known.tolist() == [False] * (4 - len(past)) + [True] * len(past)
        assert batch.history.states[row][known].argmax(-1).tolist() == past


def test_the_draft_vocabulary_is_what_the_answers_use_most(tmp_path: Path) -> None:
    settings = configured(tmp_path)
    texts = [Text("a", "code", [1, 1, 1, 1], [9, 9, 9, 4, 4, 2]), Text("b", "code", [0], [7, 7, 7, 7])]
    opened = cached(make_clock(), texts, settings, tmp_path / "cache")
    assert frequent_ids(opened, [0], 3, CLOCK_SIZE).tolist() == [2, 4, 9]
    assert frequent_ids(opened, [0, 1], 2, CLOCK_SIZE).tolist() == [7, 9]
    assert frequent_ids(opened, [0], 5, CLOCK_SIZE).tolist() == [0, 1, 2, 4, 9], "then the lowest"
    assert frequent_ids(opened, [0], CLOCK_SIZE, CLOCK_SIZE) is None


def test_a_cache_is_bounded_goes_on_and_is_not_mixed_up(tmp_path: Path) -> None:
    verifier, settings, texts = make_clock(), configured(tmp_path), random_texts()
    identity = Identity.of(verifier)
    layers = settings.model.aux_layers
    position = 2 * 3 * CLOCK_SIZE
    bounded = CacheSettings(max_length=10, history=1, max_gb=40 * position / 1e9)
    index, tokens = plan(texts, identity, layers, bounded, 256)
    assert index.rows <= 40 and index.left_out + len(tokens) == 10 and all(len(text) <= 10 for text in tokens)
    with pytest.raises(UsageError, match=r"none of 10 texts can be kept; cache\.max_gb is 0"):
        plan(texts, identity, layers, CacheSettings(max_gb=0.0), 256)

    index, tokens = plan(texts, identity, layers, settings.cache, 256)

    class Stop(Exception):
        pass

    def stop(word: str) -> None:
        if word == "t6":
            raise Stop

    with pytest.raises(Stop):
        fill(verifier, index, tokens, tmp_path / "part", stop)
    with pytest.raises(UsageError, match=r"no cache|not complete"):
        read_index(tmp_path / "part")
    fill(verifier, index, tokens, tmp_path / "part", lambda _: None)
    fill(verifier, index, tokens, tmp_path / "whole", lambda _: None)
    for name in ("states.f16", "tokens.i32", "index.json"):
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    size = (tmp_path / "whole" / "states.f16").stat().st_size
    assert size == index.rows * position
    fewer, kept = plan(texts[:4], identity, layers, settings.cache, 256)
    with pytest.raises(UsageError, match="a cache of other texts"):
        fill(verifier, fewer, kept, tmp_path / "whole", lambda _: None)
    opened = Texts(tmp_path / "whole", 3)
    with pytest.raises(UsageError, match=r"of layers \[0, 2\], model.aux_layers are \[1\]"):
        check_cache(opened, [1], identity, 0)
    with pytest.raises(UsageError, match="keeps 4 positions of history, and 9"):
        check_cache(opened, layers, identity, 9)
    with pytest.raises(UsageError, match="the target is other"):
        check_cache(opened, layers, replace(identity, name="other"), 0)
    with pytest.raises(UsageError, match="or other weights of it"):
        check_cache(opened, layers, replace(identity, sketch=(1.0,) * len(identity.sketch)), 0)
    rounded = tuple(number * 1.01 for number in identity.sketch)
    check_cache(opened, layers, replace(identity, sketch=rounded), 0)


class Letters:
    """Prompts whose characters are tokens."""

    eos_ids = [7]  # noqa: RUF012

    def ids(self, text: str) -> list[int]:
        return [ord(letter) % SIZE for letter in text]


PROMPTS = [Prompt(f"p{n}", "chat", "abcdefgh"[: 1 + n]) for n in range(7)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generated_answers_are_the_targets_and_go_on(tmp_path: Path, temperature: float) -> None:
    verifier = make_target()
    asked = GenerateSettings(max_tokens=9, temperature=temperature, batch=3, seed=5)
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    seen: list[str] = []
    assert generate(verifier, Letters(), PROMPTS, asked, whole, seen.append) == 7
    assert seen == [prompt.id for prompt in PROMPTS]
    for text, prompt in zip(read_texts(whole), PROMPTS, strict=True):
        assert text.id == prompt.id and text.prompt == Letters().ids(prompt.text)
        assert 1 <= len(text.response) <= 9 and 7 not in text.response[:-1]
        assert len(text.response) == 9 or text.response[-1] == 7
        if temperature == 0:
            assert text.response == decode(verifier, text.prompt, [7], 9, GREEDY)
    lines = whole.read_text().splitlines(keepends=True)
    part.write_text("".join(lines[:4]) + lines[4][:20])
    generate(verifier, Letters(), PROMPTS, asked, part, lambda _: None)
    assert part.read_text() == whole.read_text()
    with pytest.raises(UsageError, match="two have one id"):
        generate(verifier, Letters(), PROMPTS[:1] * 2, asked, part, lambda _: None)
    part.write_text('{"id": "x"}\n')
    with pytest.raises(UsageError, match="line 1"):
        list(read_texts(part))
