"""Counts behind the tables of quality and lookup."""

from __future__ import annotations

import numpy as np
import pytest

from acespec_edge.drafting import lookup_drafter
from tools.bench.lookup import drafted
from tools.bench.quality import accepted_mean


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
