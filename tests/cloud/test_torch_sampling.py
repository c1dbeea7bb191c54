"""The rules in PyTorch against the native ones: equal words, equal rows, equal choices."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec_edge import _core
from cloud_stub.sampling.noise import gumbel_words
from cloud_stub.sampling.sampler import TorchSampler
from cloud_stub.sampling.shaper import TorchShaper

VECTORS = Path(__file__).parents[1] / "vectors"
CASES = json.loads((VECTORS / "rules.json").read_text(encoding="utf-8"))
DEVICES = [torch.device("cpu")] + ([torch.device("cuda")] if torch.cuda.is_available() else [])
CPU = DEVICES[0]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bits(row: npt.NDArray[np.float32] | torch.Tensor) -> list[int]:
    array = row.cpu().numpy() if isinstance(row, torch.Tensor) else row
    return np.ascontiguousarray(array, np.float32).view(np.uint32).tolist()


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_noise_words_are_the_native_ones(device: torch.device) -> None:
    random = np.random.default_rng(4)
    for count in (1, 16, 255, 256, 257, 5000):
        for seed in (0, 2**64 - 1, 2**63, 2**32 - 1, int(random.integers(2**63))):
            for position in (0, 2**31 - 1, int(random.integers(2**31))):
                words = gumbel_words(seed, position, count, device)
                assert words.tolist() == _core.gumbel_words(seed, position, 0, count).tolist()


def test_noise_words_are_the_golden_ones() -> None:
    rows = [line.split() for line in (VECTORS / "noise.txt").read_text().splitlines() if line[0] != "#"]
    words: dict[tuple[str, str], torch.Tensor] = {}
    for seed, position, token, word in rows:
        if (seed, position) not in words:
            words[seed, position] = gumbel_words(int(seed, 16), int(position), 151_936, CPU)
        assert f"{int(words[seed, position][int(token)]):08x}" == word


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_golden_rows(case: dict[str, Any], device: torch.device) -> None:
    rules, size = _core.SamplingRules(**case["rules"]), case["vocabulary"]
    shaper = TorchShaper(size, rules, case["prompt"], case["stop_ids"], device=device)
    shaper.commit(case["committed"])
    mask = None if case["mask"] is None else np.array(case["mask"], np.uint32)
    row = shaper.shape(torch.tensor(case["logits"], device=device), case["path"], mask)
    wanted = [-math.inf if value is None else value for value in case["shaped"]]
    assert bits(row[:size]) == bits(np.array(wanted, np.float32))
    assert TorchSampler(size, device=device).choose(row, rules, case["position"]) == case["chosen"]


VOCABULARY = 70
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=12)
PENALTIES = st.floats(-2, 2, width=32)
RULES = st.builds(
    _core.SamplingRules,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 30, 70, 100]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    repetition_penalty=st.floats(0.125, 4, width=32),
    presence_penalty=PENALTIES,
    frequency_penalty=PENALTIES,
    logit_bias=st.dictionaries(
        st.integers(0, VOCABULARY - 1), st.floats(-200, 200, width=32), max_size=4
    ).map(lambda biases: list(biases.items())),
    banned=TOKENS,
    allowed=TOKENS,
    min_tokens=st.integers(0, 20),
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_rows_and_choices_are_the_native_ones(data: st.DataObject) -> None:
    rules = data.draw(RULES)
    prompt, output, path, stop_ids = (data.draw(TOKENS) for _ in range(4))
    rules.carried = data.draw(st.integers(0, len(prompt)))
    words = data.draw(st.none() | st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3))
    mask = None if words is None else np.array(words, np.uint32)
    logits = np.random.default_rng(data.draw(st.integers(0, 99))).normal(0, 3, 72).astype(np.float32)
    if data.draw(st.booleans()):
        logits = logits.round()  # ties, which go to the lower token
    native = _core.LogitShaper(VOCABULARY, rules, prompt, stop_ids)
    twin = TorchShaper(VOCABULARY, rules, prompt, stop_ids, device=CPU)
    for shaper in (native, twin):
        shaper.commit(output)
    assert twin.shapes() == native.shapes()
    for drafted in (path, []):  # a path leaves no trace
        wanted = native.shape(logits, drafted, mask)
        row = twin.shape(torch.from_numpy(logits), drafted, mask)
        assert bits(row[:VOCABULARY]) == bits(wanted[:VOCABULARY])
    if np.isfinite(wanted[:VOCABULARY]).any():
        position = data.draw(st.integers(0, 2**31 - 1))
        choice = TorchSampler(VOCABULARY, device=CPU).choose(row, rules, position)
        assert choice == _core.Sampler(VOCABULARY).choose(wanted, rules, position)


@pytest.mark.parametrize(
    "rules", [{}, {"top_k": 40}, {"top_p": 0.9}, {"top_k": 500, "top_p": 0.8, "min_p": 0.001}]
)
def test_choices_over_a_whole_vocabulary_are_the_native_ones(rules: dict[str, float]) -> None:
    random = np.random.default_rng(7)
    native, twin = _core.Sampler(151_643), TorchSampler(151_643, device=CPU)
    for position in range(12):
        logits = random.normal(0, 3, 151_936).astype(np.float32)
        request = _core.SamplingRules(temperature=1.0, seed=int(random.integers(2**63)), **rules)
        assert twin.choose(torch.from_numpy(logits), request, position) == native.choose(
            logits, request, position
        )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_n1_numbers_that_no_token_can_be_drawn_from(temperature: float) -> None:
    rules, sampler = _core.SamplingRules(temperature=temperature), TorchSampler(4, device=CPU)
    for bad in (math.nan, math.inf):
        with pytest.raises(_core.EngineError, match="NaN"):
            sampler.choose(torch.tensor([0.0, bad, 0.0, 0.0]), rules, 0)
    with pytest.raises(_core.EngineError, match="every token is ruled out"):
        sampler.choose(torch.full((4,), -math.inf), rules, 0)
    padded = torch.tensor([0.0, 1.0, 0.0, 0.0, math.nan])  # padding may hold anything
    assert sampler.choose(padded, rules, 0) in range(4)


def test_misuse_is_named() -> None:
    rules, sampler = _core.SamplingRules(temperature=1.0), TorchSampler(4, device=CPU)
    with pytest.raises(_core.UsageError, match="logits has 3 columns"):
        sampler.choose(torch.zeros(3), rules, 0)
    with pytest.raises(_core.UsageError, match="position is -1"):
        sampler.choose(torch.zeros(4), rules, -1)
    with pytest.raises(_core.UsageError, match="top_p"):
        sampler.choose(torch.zeros(4), _core.SamplingRules(temperature=1.0, top_p=2.0), 0)
    with pytest.raises(_core.UsageError, match="allowed names token 8"):
        TorchShaper(8, _core.SamplingRules(allowed=[8]), [], device=CPU)
    with pytest.raises(_core.UsageError, match="carried is 2"):
        TorchShaper(8, _core.SamplingRules(carried=2), [1], device=CPU)
    shaper = TorchShaper(40, rules, [], device=CPU)
    with pytest.raises(_core.UsageError, match="mask has 1 words"):
        shaper.shape(torch.zeros(40), [], np.zeros(1, np.uint32))
    with pytest.raises(_core.UsageError, match="path names token 40"):
        shaper.shape(torch.zeros(40), [40])
    with pytest.raises(_core.UsageError, match="logits has 39 columns"):
        shaper.shape(torch.zeros(39), [])
