"""Counts behind the tables of quality and lookup, and a drafter of no use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from acespec_edge.drafting import lookup_drafter
from acespec_edge.export import architecture as arch
from acespec_edge.export.hf_source import HfSource
from tests.python.model_kit import random_model, save_folder
from tools.bench.lookup import drafted
from tools.bench.quality import accepted_mean
from tools.bench.shuffled import Shuffled


@pytest.mark.parametrize(
    ("agrees", "length", "mean"),
    [
        ([1, 1, 1, 1, 1, 1], 2, 2.0),  # 2 and the target's own, twice
        ([0, 0, 0], 4, 0.0),
        ([1, 0, 1, 1, 0], 4, 1.5),
        ([1, 1, 0, 1], 8, 1.5),
        ([], 4, 0.0),
    ],
)
def test_accepted_tokens_follow_from_agreement(agrees: list[int], length: int, mean: float) -> None:
    assert accepted_mean(np.array(agrees, bool), length) == mean


def test_lookup_drafts_what_an_answer_repeats() -> None:
    drafter = lookup_drafter(16, context=64)
    prompt = [1, 2, 3, 4, 5, 6, 9, 1, 2]
    # Three of [3, 4, 5, 6] are right, 8 is the target's own; then nothing is known.
    assert drafted(drafter, prompt, [3, 4, 5, 8, 7], 4) == (2, 4, 3)
    assert drafted(drafter, [1, 2, 3], [4, 5], 4) == (2, 0, 0)


def test_a_shuffled_source_has_the_same_numbers_elsewhere(tmp_path: Path) -> None:
    source = HfSource(save_folder(random_model("llama"), tmp_path))
    shuffled = Shuffled(source)
    assert (shuffled.spec, shuffled.tokenizer_json) == (source.spec, source.tokenizer_json)
    for name in (arch.EMBED, arch.FINAL_NORM, arch.layer_tensor(0, arch.GATE)):
        before, after = source.tensor(name), shuffled.tensor(name)
        assert after.shape == before.shape and not np.array_equal(after, before)
        assert np.array_equal(np.sort(after, axis=None), np.sort(before, axis=None))
        assert np.array_equal(after, Shuffled(source).tensor(name))
