"""Drafting by lookup, alone and beside a model: the text is the target's, and repetition is drafted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec_edge import _core
from acespec_edge.drafting import lookup_drafter
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import UsageError
from tests.integration.edge_cloud_kit import CONTEXT, PROMPT, SEED, TARGET, local_runtime, plainly_by
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import decode_plainly


def drafters(context: int = CONTEXT) -> dict[str, _core.Drafter]:
    engine = _core.FakeEngine(vocabulary=64, slots=context + 256, seed=SEED, disagreement=0.3, max_rows=16)
    options = _core.DrafterOptions(context=context, max_nodes=64, lookup=8)
    return {"lookup": lookup_drafter(64, context=context), "both": _core.Drafter(engine, options)}


@pytest.mark.parametrize("kind", ["lookup", "both"])
@pytest.mark.parametrize("length", [None, 0, 1, 5, 8])
def test_greedy_text_is_the_targets_after_one_word_over_and_over(bundle, kind, length) -> None:
    prompt = [7] * 48
    with local_runtime(bundle, drafters()[kind], draft_length=length) as edge:
        assert edge.generate(prompt, max_tokens=32).token_ids == plainly_by({}, 32, prompt=prompt)
        assert edge.generate(PROMPT, max_tokens=32).token_ids == plainly_by({}, 32)


@pytest.mark.parametrize("kind", ["lookup", "both"])
def test_sampled_and_bound_text_is_the_targets(bundle, kind) -> None:
    rules: dict[str, Any] = {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.2}
    prompt = [*PROMPT, *PROMPT, *PROMPT]
    with local_runtime(bundle, drafters()[kind]) as edge:
        assert edge.generate(prompt, max_tokens=40, **rules).token_ids == plainly_by(rules, 40, prompt=prompt)


@pytest.mark.parametrize(
    "policy", ["auto", "chain", "tree", "in-flight", "acespec", "acespec-single", "acespec-uniform"]
)
def test_every_policy_commits_the_targets_text(bundle, policy) -> None:
    for drafter in drafters().values():
        with local_runtime(bundle, drafter, policy=policy) as edge:
            assert edge.generate([7] * 20, max_tokens=24).token_ids == plainly_by({}, 24, prompt=[7] * 20)


@pytest.mark.parametrize("kind", ["lookup", "both"])
def test_a_repeating_text_is_drafted_without_a_word_from_the_model(bundle, kind) -> None:
    def periodic(sequence: Sequence[int]) -> int:
        return sequence[-9]

    prompt = [3, 1, 4, 15, 9, 2, 6, 5, 35, 3, 1, 4]
    link = FakeCloud(periodic)
    with EdgeRuntime(bundle, lambda: link, drafter=drafters()[kind], context=CONTEXT, draft_length=8) as edge:
        result = edge.generate(prompt, max_tokens=60)
    assert result.token_ids == decode_plainly(periodic, prompt, 60)
    assert result.stats.accepted_mean > 6


def test_the_name_lookup_needs_no_model(bundle) -> None:
    link = FakeCloud(lambda sequence: sequence[-3])
    with EdgeRuntime(bundle, lambda: link, drafter="lookup", draft_length=8) as edge:
        result = edge.generate([5, 6, 7, 5, 6, 7], max_tokens=30)
        assert result.token_ids == [5, 6, 7] * 10
        with pytest.raises(UsageError, match="mode edge needs a model"):
            edge.generate(PROMPT, mode="edge")
        with pytest.raises(UsageError, match="residual mode draws from a model's distribution"):
            edge.generate(PROMPT, max_tokens=4, sampling="residual")
    with pytest.raises(UsageError, match="drafter is 'ngram': it must be one of model, lookup, both"):
        EdgeRuntime(bundle, lambda: link, drafter="ngram")  # type: ignore[arg-type]


def test_alone_the_drafter_writes_its_models_own_text(bundle) -> None:
    """What was looked up is the target's business: the drafter by itself never shows it."""
    engine = _core.FakeEngine(vocabulary=64, slots=512, seed=SEED)
    drafter = _core.Drafter(engine, _core.DrafterOptions(context=CONTEXT, lookup=8))
    with EdgeRuntime(bundle, mode="edge", drafter=drafter, context=CONTEXT) as edge:
        assert edge.generate([7] * 20, max_tokens=16).token_ids == plainly_by(
            {}, 16, prompt=[7] * 20, engine=TARGET
        )


_TEXT = st.lists(st.integers(0, 3), max_size=60)


@given(text=_TEXT, path=st.lists(st.integers(0, 3), max_size=10))
def test_the_longest_and_last_match_is_found(text: list[int], path: list[int]) -> None:
    index = _core.NgramIndex(64)
    index.assign(text[:20])
    for token in text[20:]:
        index.append(token)
    whole = [*text, *path]
    matches = (
        (length, place)
        for length in range(8, 1, -1)
        if length <= len(whole)
        for place in range(len(text) - 1, length - 1, -1)
        if text[place - length : place] == whole[-length:]
    )
    assert index.find(path) == next(matches, None)
