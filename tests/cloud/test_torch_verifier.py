"""The torch verifier against transformers' own forward and ``generate``, on small random models."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from acespec_edge import _core
from acespec_edge.errors import EngineError, UsageError
from acespec_edge.protocol import ROOT, path_to
from cloud_stub.verifiers.base import Rows
from cloud_stub.verifiers.kv_cache import TailCache
from cloud_stub.verifiers.torch_verifier import TorchHandle, TorchVerifier, tree_mask
from tests.cloud.rig import Rig, tiny_vocabulary

pytestmark = pytest.mark.usefixtures("one_thread")

SIZE = 64
PADDED = 72
SHAPE = {
    "vocab_size": PADDED,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def make_model(kind: str) -> PreTrainedModel:
    torch.manual_seed(3)
    config, model = KINDS[kind]
    return model(config(**SHAPE)).eval()


@pytest.fixture(scope="module", params=sorted(KINDS))
def verifier(request: pytest.FixtureRequest) -> TorchVerifier:
    return TorchVerifier(make_model(request.param), tiny_vocabulary(SIZE), name=request.param)


@torch.inference_mode()
def fresh_row(verifier: TorchVerifier, tokens: Sequence[int]) -> Rows:
    """Logits after ``tokens`` by a plain forward without a cache."""
    return verifier.model(torch.tensor([list(tokens)]), use_cache=False).logits[0, -1].numpy()


def assert_close(row: Rows, expected: Rows) -> None:
    np.testing.assert_allclose(row, expected, atol=1e-4, rtol=0)


def test_what_it_says_about_itself(verifier: TorchVerifier) -> None:
    assert verifier.logits_width == PADDED and verifier.vocabulary.size == SIZE
    assert verifier.max_context == 512 and verifier.device == "cpu" and verifier.dtype == "float32"


def test_prefill_in_chunks_equals_prefill_at_once(verifier: TorchVerifier) -> None:
    prompt = [(7 * i) % SIZE for i in range(300)]
    handle = verifier.open()
    for first in range(0, 300, 111):
        row = handle.prefill(prompt[first : first + 111])
    assert row.shape == (1, PADDED) and row.dtype == np.float32
    assert_close(row[0], fresh_row(verifier, prompt))


def test_a_tree_is_verified_as_each_of_its_paths_alone(verifier: TorchVerifier) -> None:
    rng = random.Random(5)
    prompt, tip = [1, 2, 3, 4], 9
    parents = [rng.randrange(-1, node) if node else ROOT for node in range(14)]
    tokens = [rng.randrange(SIZE) for _ in parents]
    handle = verifier.open()
    handle.prefill(prompt)
    rows = handle.verify(tip, tokens, parents)
    assert rows.shape == (15, PADDED)
    assert_close(rows[0], fresh_row(verifier, [*prompt, tip]))
    for node in range(14):
        path = [tokens[k] for k in path_to(node, parents)]
        assert_close(rows[node + 1], fresh_row(verifier, [*prompt, tip, *path]))


@pytest.mark.parametrize("accepted", [0, 2, 5])
def test_keep_leaves_the_kv_of_a_fresh_prefill(verifier: TorchVerifier, accepted: int) -> None:
    # The true path is scattered over the tree: 1, 3, 5, 7, 9; the even nodes are siblings.
    chain = [11, 12, 13, 14, 15]
    tokens = [token for pair in zip([50] * 5, chain, strict=True) for token in pair]
    parents = [ROOT, ROOT, 1, 1, 3, 3, 5, 5, 7, 7]
    handle = verifier.open()
    handle.prefill([1, 2, 3])
    handle.verify(10, tokens, parents)
    handle.keep([1, 3, 5, 7, 9][:accepted])
    assert handle.length == 4 + accepted
    kept = [1, 2, 3, 10, *chain[:accepted]]
    assert_close(handle.verify(20, [], [])[0], fresh_row(verifier, [*kept, 20]))


def test_k1_rejection_and_acceptance_in_turn_200_times(verifier: TorchVerifier) -> None:
    rng = random.Random(9)
    handle = verifier.open()
    committed = [1, 2]
    handle.prefill(committed)
    tip = 3
    for turn in range(200):
        tokens = [rng.randrange(SIZE) for _ in range(3)]
        handle.verify(tip, tokens, [ROOT, 0, 1])
        accepted = tokens[: 3 * (turn % 2)]
        if len(committed) + 5 > 512:
            break
        handle.keep(list(range(len(accepted))))
        committed += [tip, *accepted]
        tip = rng.randrange(SIZE)
    assert turn == 199 and len(committed) == 502
    assert_close(handle.verify(tip, [], [])[0], fresh_row(verifier, [*committed, tip]))


def chained(verifier: TorchVerifier, prompt: list[int], chains: Iterator[list[int]], count: int) -> list[int]:
    """Output of a whole request over the service with these drafts."""
    client = Rig(verifier, prefill_chunk=16).client()
    client.open(prompt, max_tokens=count)
    for round in range(1, 1000):
        if len(client.committed) == len(prompt) + count:
            break
        client.draft(round, next(chains))
    return client.committed[len(prompt) :]


def test_speculation_gives_what_generate_gives(verifier: TorchVerifier) -> None:
    prompt = [5, 9, 2, 33, 40, 41, 7] * 6
    # Padding ids are never drawn by the service, so generate must not draw them either.
    with torch.inference_mode():
        whole = verifier.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
            max_new_tokens=48,
            do_sample=False,
            suppress_tokens=list(range(SIZE, PADDED)),
        )
    expected = whole[0, len(prompt) :].tolist()
    rng = random.Random(1)

    def drafts() -> Iterator[list[int]]:
        client_done = 1
        while True:
            chain = expected[client_done : client_done + rng.choice([0, 1, 2, 5, 8])]
            right = len(chain)
            if chain and rng.random() < 0.5:
                right = rng.randrange(len(chain))
                chain[right] = (chain[right] + 1) % SIZE
            client_done += right + 1
            yield chain

    assert chained(verifier, prompt, drafts(), 48) == expected
    assert chained(verifier, prompt, iter([[]] * 100), 48) == expected


def test_handles_do_not_disturb_each_other(verifier: TorchVerifier) -> None:
    handles: list[TorchHandle] = [verifier.open() for _ in range(3)]
    committed = [[1], [2, 3], [4, 5, 6]]
    for handle, tokens in zip(handles, committed, strict=True):
        handle.prefill(tokens)
    for turn in range(6):
        for number, (handle, tokens) in enumerate(zip(handles, committed, strict=True)):
            handle.verify(7, [8, 9, 10], [ROOT, 0, 1])
            accepted = (0, 2, 3)[(number + turn) % 3]
            handle.keep(list(range(accepted)))
            tokens += [7, *[8, 9, 10][:accepted]]
    for handle, tokens in zip(handles, committed, strict=True):
        assert handle.length == len(tokens)
        assert_close(handle.verify(11, [], [])[0], fresh_row(verifier, [*tokens, 11]))


def test_misuse_is_named(verifier: TorchVerifier) -> None:
    handle = verifier.open()
    with pytest.raises(UsageError, match="prefill of no tokens"):
        handle.prefill([])
    handle.prefill([1])
    handle.verify(2, [3], [ROOT])
    with pytest.raises(EngineError, match="keep must follow verify"):
        handle.verify(2, [3], [ROOT])
    handle.close()
    with pytest.raises(UsageError, match="closed"):
        handle.keep([])


def test_g4_a_sliding_window_is_refused_at_load() -> None:
    model = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=32))
    with pytest.raises(UsageError, match="window of 32"):
        TorchVerifier(model, tiny_vocabulary(SIZE), name="mistral")
    windowed = Qwen2ForCausalLM(
        Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=32, max_window_layers=1)
    )
    with pytest.raises(UsageError, match="sliding_attention"):
        TorchVerifier(windowed, tiny_vocabulary(SIZE), name="qwen2")


@pytest.mark.parametrize(
    "rope",
    [
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 4,
            "long_factor": [8.0] * 4,
            "original_max_position_embeddings": 256,
            "factor": 2.0,
        },
        {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 256},
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_g4_a_rotation_that_depends_on_the_length_is_refused_at_load(rope: dict[str, object]) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters={"rope_theta": 10_000.0} | rope))
    with pytest.raises(UsageError, match=f"rotary positions of type '{rope['rope_type']}'"):
        TorchVerifier(model, tiny_vocabulary(SIZE), name="llama")


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256},
        {
            "rope_type": "llama3",
            "factor": 2.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_a_fixed_rotation_gives_a_row_that_drafts_do_not_change(rope: dict[str, object]) -> None:
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters={"rope_theta": 10_000.0} | rope)).eval()
    verifier = TorchVerifier(model, tiny_vocabulary(SIZE), name="llama")
    prompt = [(7 * i) % SIZE for i in range(254)]
    handle = verifier.open()
    handle.prefill(prompt)
    row = handle.verify(1, [2, 3, 4, 5], [ROOT, 0, 1, 2])[0]
    assert_close(row, fresh_row(verifier, [*prompt, 1]))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_attention_that_would_ignore_the_mask_is_refused_at_load(kind: str) -> None:
    model = make_model(kind)
    model.set_attn_implementation("eager")
    with pytest.raises(UsageError, match=r"'eager', .*'sdpa' would be right"):
        TorchVerifier(model, tiny_vocabulary(SIZE), name=kind)


def test_max_context_is_checked(verifier: TorchVerifier) -> None:
    with pytest.raises(UsageError, match="max_context is 1000"):
        TorchVerifier(verifier.model, tiny_vocabulary(SIZE), name="x", max_context=1000)
    assert TorchVerifier(verifier.model, tiny_vocabulary(SIZE), name="x", max_context=99).max_context == 99


def test_tree_mask() -> None:
    mask = tree_mask([ROOT, 0, ROOT, 2]).int().tolist()
    assert mask == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 1]]


def test_keep_moves_rows_of_the_tail_only_and_buffers_grow_by_doubling() -> None:
    cache = TailCache(1)
    rows = torch.arange(300.0).reshape(1, 1, 300, 1)
    cache.update(rows[:, :, :250], rows[:, :, :250], 0)
    first = cache.layers[0].keys.untyped_storage()
    cache.update(rows[:, :, 250:256], rows[:, :, 250:256], 0)
    assert cache.layers[0].keys.untyped_storage().data_ptr() == first.data_ptr(), "appended in place"
    cache.keep(250, [0, 2, 5])
    keys, values = cache.update(rows[:, :, :1], rows[:, :, :1], 0)
    assert keys[0, 0, 248:, 0].tolist() == values[0, 0, 248:, 0].tolist() == [248, 249, 250, 252, 255, 0]
    cache.update(rows, rows, 0)
    assert cache.length == 554 and cache.layers[0].keys.untyped_storage().nbytes() == 4 * max(2 * 256, 554)
    with pytest.raises(IndexError):
        cache.keep(600, [7])


def test_kinds_of_draws_agree_between_service_and_core(verifier: TorchVerifier) -> None:
    """Coupled sampling through the service equals drawing each token from a plain forward."""
    rules = _core.SamplingRules(temperature=0.9, top_p=0.9, seed=77)
    sampler = _core.Sampler(SIZE)
    truth = [1, 2, 3]
    for _ in range(20):
        truth.append(sampler.choose(np.ascontiguousarray(fresh_row(verifier, truth)), rules, len(truth)))
    client = Rig(verifier).client()
    client.open([1, 2, 3], max_tokens=20, rules=rules)
    for round in range(1, 20):
        if len(client.committed) >= 23:
            break
        client.draft(round, truth[len(client.committed) : len(client.committed) + 4])
    assert client.committed == truth


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_k1_n2_what_is_cropped_or_branched_goes_on_as_if_it_were_read_anew(kind: str) -> None:
    verifier = TorchVerifier(make_model(kind), tiny_vocabulary(SIZE), name=kind)
    random_tokens = random.Random(5)
    text = [random_tokens.randrange(SIZE) for _ in range(300)]
    handle = verifier.open()
    handle.prefill(text)
    for length in (280, 257, 131, 1):
        handle.verify(3, [1, 2, 4], [ROOT, 0, ROOT])  # left without keep
        handle.crop(length)
        branch = handle.branch(length)
        for one in (handle, branch):
            assert one.length == length
            rows = one.prefill([9, 8])
            np.testing.assert_allclose(rows, fresh_row(verifier, [*text[:length], 9, 8])[None], atol=1e-4)
            tree = one.verify(7, [5, 6], [ROOT, 0])
            np.testing.assert_allclose(
                tree[2], fresh_row(verifier, [*text[:length], 9, 8, 7, 5, 6]), atol=1e-4
            )
            one.keep([0])
        branch.close()
        assert handle.length == length + 4, "what is done with a branch is its own"
        handle.crop(length)


def test_a_branch_of_nothing_is_an_empty_handle(verifier: TorchVerifier) -> None:
    branch = verifier.open().branch(0)
    np.testing.assert_allclose(branch.prefill([1, 2]), fresh_row(verifier, [1, 2])[None], atol=1e-4)
