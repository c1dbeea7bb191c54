"""Residual sampling through EdgeRuntime: where it ends, when it asks for more, what a seed repeats."""

from __future__ import annotations

from typing import Any

import pytest

from acespec_edge.bundle import Bundle
from cloud_stub.rejection import Rejection
from tests.integration.edge_cloud_kit import (
    CONTEXT,
    PROMPT,
    local_runtime,
    native_drafter,
)

pytestmark = pytest.mark.usefixtures("threads_end")

SAMPLED = {"temperature": 1.0, "seed": 42}


@pytest.mark.parametrize("context", [len(PROMPT) + 1, len(PROMPT) + 5, CONTEXT])
@pytest.mark.parametrize("logprobs", [None, 1])
@pytest.mark.parametrize("max_tokens", [1, 2, 7, 30])
def test_residual_sampling_ends_where_it_should(
    bundle: Bundle, max_tokens: int, logprobs: int | None, context: int
) -> None:
    drafter = native_drafter(disagreement=0.6, context=context)
    with local_runtime(bundle, drafter, draft_length=3, context=context) as edge:
        for seed in range(6):
            options: dict[str, Any] = {"temperature": 1.0, "seed": seed, "logprobs": logprobs}
            pieces = list(
                stream := edge.stream(PROMPT, max_tokens=max_tokens, sampling="residual", **options)
            )
            result = stream.result
            assert (len(result.token_ids), result.finish_reason) == (max_tokens, "length")
            assert [token for piece in pieces for token in piece.token_ids] == result.token_ids
            assert drafter.check() == []


def test_residual_sampling_asks_for_samples_when_they_run_out(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloud_stub.rejection._HEAD", 1)
    monkeypatch.setattr("cloud_stub.rejection._SAMPLES", 1)
    asked = []
    more = Rejection.more
    monkeypatch.setattr(Rejection, "more", lambda self: asked.append(self.position) or more(self))
    with local_runtime(bundle, native_drafter(disagreement=1.0), draft_length=3) as edge:
        for seed in range(10):
            result = edge.generate(PROMPT, max_tokens=30, temperature=2.0, seed=seed, sampling="residual")
            assert len(result.token_ids) == 30
    assert len(asked) > 10


def test_residual_sampling_repeats_by_seed_and_can_be_cancelled(bundle: Bundle) -> None:
    options: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0, "sampling": "residual"}
    with local_runtime(bundle, native_drafter(disagreement=0.5), draft_length=4) as edge:
        texts = [tuple(edge.generate(PROMPT, seed=seed, **options).token_ids) for seed in range(8)]
        assert len(set(texts)) == 8
        for seed in range(8):
            with edge.stream(PROMPT, seed=seed, **options) as stream:
                for _ in range(1 + seed % 4):
                    next(stream)
            assert tuple(stream.result.token_ids) == texts[seed][: len(stream.result.token_ids)]
        assert tuple(edge.generate(PROMPT, seed=3, **options).token_ids) == texts[3]
