"""A corpus out of nothing: prompts that are invented, many answers at a time, states kept as they pass by."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from acespec_edge import _core
from acespec_edge.errors import UsageError
from cloud_stub.verifiers.hidden_states import HiddenStates
from cloud_stub.verifiers.packed_linear import pack
from tests.cloud.dlite_kit import make_head, make_target
from tests.cloud.test_torch_verifier import SIZE
from tools.bench.data import KINDS
from tools.train_dlite.batches import Texts
from tools.train_dlite.collecting import TEXTS, collect
from tools.train_dlite.decoding import Row, decode_together
from tools.train_dlite.evaluate import decode
from tools.train_dlite.invented import invented_prompts
from tools.train_dlite.settings import CollectSettings
from tools.train_dlite.start import adopt_layers
from tools.train_dlite.states import states_of
from tools.train_dlite.texts import read_texts

pytestmark = pytest.mark.usefixtures("one_thread")


class Letters:
    """Prompts whose characters are tokens, behind a header and before a footer."""

    eos_ids = [7, 9]  # noqa: RUF012

    def ids(self, text: str) -> list[int]:
        return [1, 2, *(10 + ord(letter) % (SIZE - 10) for letter in text), 3]


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_each_answer_is_what_the_target_says_alone(kind: str) -> None:
    target = make_target(kind)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, SIZE, 1 + 3 * n % 11).tolist() for n in range(24)]
    rows = [Row(prompt, 0.0, 2 + n % 13) for n, prompt in enumerate(prompts)]
    stops = list(range(0, SIZE, 9))
    rules = _core.SamplingRules(temperature=0.0, seed=1)
    for row, answer in zip(rows, decode_together(target, rows, stops, 1), strict=True):
        assert answer == decode(target, row.prompt, stops, row.tokens, rules)


def test_draws_follow_from_the_seed_and_vary_with_it() -> None:
    target = make_target()
    rows = [Row([4, 5, 6], 0.0 if n % 2 else 3.0, 8) for n in range(8)]
    once, again, other = (decode_together(target, rows, [], seed) for seed in (1, 1, 2))
    assert once == again != other
    assert once[1::2] == other[1::2] and len({*map(tuple, once[1::2])}) == 1
    assert len({*map(tuple, once[::2])}) == 4


def settings(**changes: Any) -> CollectSettings:
    given: dict[str, Any] = {"tokens": 150, "max_tokens": 12, "batch": 5, "greedy": 0.5, "dtype": "float32"}
    return CollectSettings(**(given | changes))


def test_what_is_collected_is_what_a_forward_of_the_text_leaves(tmp_path: Path) -> None:
    target = make_target()
    heard: list[int] = []
    index = collect(target, Letters(), (0, 1), settings(), tmp_path, heard.append)
    texts = list(read_texts(tmp_path / TEXTS))
    assert 150 <= sum(heard) == sum(len(text.response) for text in texts) < 150 + 5 * 12
    assert any(text.id.startswith("own") for text in texts) and {text.kind for text in texts} == {*KINDS}
    cache = Texts(tmp_path, 3)
    assert cache.index == index and len(index.entries) == len(texts)
    hooks = HiddenStates(target.model, (0, 1))
    states = np.memmap(tmp_path / "states.f16", np.float16, "r", shape=index.shape)
    for entry, text in zip(index.entries, texts, strict=True):
        tokens = [*text.prompt, *text.response]
        assert cache.tokens(entry).tolist() == tokens and entry.first == entry.answer - 1
        expected = states_of(target, hooks, tokens[:-1])[entry.first :]
        found = states[entry.row : entry.row + len(expected)]
        np.testing.assert_allclose(found, expected, atol=4e-3, rtol=2e-3)
    hooks.remove()


def test_an_interrupted_collection_ends_with_the_same_bytes(tmp_path: Path) -> None:
    target = make_target()

    class Enough(Exception):
        pass

    def until(count: int) -> Any:
        calls = itertools.count()

        def advance(tokens: int) -> None:
            if next(calls) == count:
                raise Enough

        return advance

    collect(target, Letters(), (1,), settings(), tmp_path / "whole", lambda _: None)
    for count in (1, 2):
        with pytest.raises(Enough):
            collect(target, Letters(), (1,), settings(), tmp_path / "part", until(count))
    with (tmp_path / "part" / TEXTS).open("a") as file:
        file.write('{"id": "half a li')
    with (tmp_path / "part" / "states.f16").open("ab") as states:
        states.write(b"half")
    collect(target, Letters(), (1,), settings(), tmp_path / "part", lambda _: None)
    for name in ("states.f16", "tokens.i32", "index.json", "done", TEXTS):
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_invented_prompts_are_new_each_time_and_the_same_for_a_seed() -> None:
    first, again, other = (list(itertools.islice(invented_prompts(seed), 3000)) for seed in (1, 1, 2))
    assert first == again != other
    assert len({prompt.text for prompt in first}) == len({prompt.id for prompt in first}) == 3000
    assert all("{" not in prompt.text or prompt.kind == "code" for prompt in first)
    shares = {kind: sum(prompt.kind == kind for prompt in first) / 3000 for kind in KINDS}
    assert shares == {"math": 0.3, "code": 0.3, "chat": 0.4}


def test_a_head_begins_as_layers_of_its_target() -> None:
    target = make_target()
    config = target.model.config
    head = make_head(
        target, layers=2, heads=config.num_attention_heads, head_dim=config.head_dim,
        intermediate=config.intermediate_size,
    )  # fmt: skip
    adopt_layers(head, target.model, (1, 0))
    states = torch.randn(3, 6, config.hidden_size)
    for number, layer in zip((1, 0), head.backbone.layers, strict=True):
        theirs = target.model.base_model.layers[number]
        assert torch.equal(layer.down.weight, theirs.mlp.down_proj.weight)
        normed = theirs.input_layernorm(states)
        keys = theirs.self_attn.k_proj(normed).unflatten(-1, (-1, config.head_dim))
        shared = config.num_attention_heads // config.num_key_value_heads
        ours = layer.key(layer.attn_norm(states)).unflatten(-1, (-1, config.head_dim))
        torch.testing.assert_close(ours, keys.repeat_interleave(shared, dim=-2), rtol=1e-3, atol=1e-4)
    with pytest.raises(UsageError, match=r"2 of the target's layers, 0 to 1"):
        adopt_layers(head, target.model, (0,))
    with pytest.raises(UsageError, match=r"train.start: .* in another order, for speed"):
        packed = make_target().model
        pack(packed)
        adopt_layers(head, packed, (1, 0))
    with pytest.raises(UsageError, match="gate of the head is"):
        adopt_layers(
            make_head(target, heads=4, head_dim=config.head_dim, intermediate=40),
            target.model,
            (0, 1),
        )
