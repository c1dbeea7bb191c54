"""What a caller may ask for, through EdgeRuntime in all its modes: the output is the target's own under the
same rules, wherever blocks end.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import UsageError
from acespec_edge.request import Mode, Sampling
from tests.integration.edge_cloud_kit import (
    CONTEXT,
    PROMPT,
    TARGET,
    local_runtime,
    native_drafter,
    plainly_by,
    served,
)
from tests.python.fake_bundle import EMOJI_IDS, EOS, with_eos

pytestmark = pytest.mark.usefixtures("threads_end")

FAVOURITE = plainly_by({}, 1)[0]
SAMPLED = {"temperature": 1.0, "seed": 42}
RULES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"repetition_penalty": 1.8}, {}),
    ({"presence_penalty": 2.0}, {}),
    ({"frequency_penalty": 1.5}, {}),
    ({"frequency_penalty": -1.0}, {}),
    ({}, {"logit_bias": {FAVOURITE: -100.0, 5: 4.0}}),
    ({}, {"banned_tokens": [FAVOURITE, 1, 2]}),
    ({}, {"allowed_tokens": list(range(3, 40))}),
    ({"min_p": 0.5}, {"logit_bias": {FAVOURITE: -100.0}}),
    (
        {
            "repetition_penalty": 1.2,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.7,
            "top_k": 30,
            "top_p": 0.95,
        },
        {"logit_bias": {7: 2.0}, "banned_tokens": [1], "allowed_tokens": list(range(50))},
    ),
]


def native(fields: dict[str, Any], lists: dict[str, Any]) -> dict[str, Any]:
    """The options as SamplingRules has them."""
    names = {"banned_tokens": "banned", "allowed_tokens": "allowed", "logit_bias": "logit_bias"}
    return fields | {
        names[name]: list(value.items()) if name == "logit_bias" else value for name, value in lists.items()
    }


@pytest.mark.parametrize("noise", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("fields", "lists"), RULES)
def test_s3_s4_every_rule_equals_plain_decoding_in_every_mode(
    bundle: Bundle, fields: dict[str, Any], lists: dict[str, Any], noise: dict[str, Any]
) -> None:
    drafter = native_drafter(disagreement=0.3)
    own = _core.FakeEngine(vocabulary=64, slots=64, seed=5, disagreement=0.3)
    rules = native(fields | noise, lists)
    alone = plainly_by(rules, 40)
    with local_runtime(bundle, drafter, draft_length=4) as edge:
        options: dict[str, Any] = {"max_tokens": 40, **fields, **lists, **noise}
        assert edge.generate(PROMPT, **options).token_ids == alone
        assert drafter.check() == []
        assert edge.generate(PROMPT, mode="cloud", **options).token_ids == alone
        assert edge.generate(PROMPT, mode="edge", **options).token_ids == plainly_by(rules, 40, engine=own)
        if not noise:
            assert edge.generate(PROMPT, sampling="residual", **options).token_ids == alone


def test_s4_a_drafter_that_is_always_wrong_leaves_no_trace(bundle: Bundle) -> None:
    rules = {"frequency_penalty": 2.0, "presence_penalty": 1.0, "repetition_penalty": 1.5}
    with local_runtime(bundle, native_drafter(disagreement=1.0), draft_length=8) as edge:
        result = edge.generate(PROMPT, max_tokens=60, **rules)
    assert result.token_ids == plainly_by(rules, 60)


def test_rules_keep_acceptance_high(bundle: Bundle) -> None:
    """A drafter equal to the target drafts right under any rules, for it applies them too."""
    with local_runtime(bundle, native_drafter(disagreement=0.0), draft_length=8) as edge:
        for fields, lists in RULES:
            stats = edge.generate(PROMPT, max_tokens=46, **fields, **lists, **SAMPLED).stats
            assert stats.accepted_mean == 8.0, (fields, lists)


@pytest.mark.parametrize("sampling", ["coupled", "residual"])
@pytest.mark.parametrize("mode", ["auto", "cloud", "edge"])
@pytest.mark.parametrize("least", [0, 1, 3, 6, 11])
def test_e1_min_tokens_and_ignore_eos(bundle: Bundle, least: int, mode: Mode, sampling: Sampling) -> None:
    stops = plainly_by({}, 3)
    alone = plainly_by({"min_tokens": least}, 30, stop=stops)
    with local_runtime(with_eos(bundle, *stops), native_drafter(disagreement=0.0), draft_length=5) as edge:
        options: dict[str, Any] = {"max_tokens": 30, "mode": mode, "sampling": sampling}
        result = edge.generate(PROMPT, min_tokens=least, **options)
        assert result.token_ids == alone and len(alone) > least
        assert result.finish_reason == ("stop" if alone[-1] in stops else "length")
        free = edge.generate(PROMPT, ignore_eos=True, **options)
        assert (free.token_ids, free.finish_reason) == (plainly_by({}, 30), "length")


@pytest.mark.parametrize("place", range(1, 12))
def test_e5_what_ended_in_mid_block_goes_on_as_if_unbroken(bundle: Bundle, place: int) -> None:
    rules: dict[str, Any] = {"frequency_penalty": 0.6, "repetition_penalty": 1.1, "temperature": 1.0}
    with local_runtime(bundle, native_drafter(disagreement=0.1), draft_length=5) as edge:
        whole = edge.generate(PROMPT, max_tokens=30, seed=42, **rules)
        assert whole.token_ids == plainly_by({**rules, "seed": 42}, 30)
        stop = whole.text[place : place + 2]
        first = edge.generate(PROMPT, max_tokens=30, stop=stop, seed=42, **rules)
        assert first.finish_reason == "stop" and len(first.token_ids) < 30
        left = 30 - len(first.token_ids)
        rest = edge.generate(PROMPT, max_tokens=left, continue_from=first, **rules)
        assert first.token_ids + rest.token_ids == whole.token_ids
        assert rest.stats.seed == 42 and rest.usage.prompt_tokens == len(PROMPT) + len(first.token_ids)
        short = edge.generate(PROMPT, max_tokens=3, continue_from=first.token_ids, seed=42, **rules)
        last = edge.generate(PROMPT, max_tokens=left - 3, continue_from=short, **rules)
        assert first.token_ids + short.token_ids + last.token_ids == whole.token_ids


def test_e5_residual_output_goes_on_too(bundle: Bundle) -> None:
    options: dict[str, Any] = {"sampling": "residual", "frequency_penalty": 0.6, "temperature": 1.0}
    with local_runtime(bundle, native_drafter(disagreement=0.3), draft_length=5) as edge:
        first = edge.generate(PROMPT, max_tokens=7, **options)
        rest = edge.generate(PROMPT, max_tokens=9, continue_from=first, **options)
        again = edge.generate(
            PROMPT, max_tokens=9, continue_from=first.token_ids, seed=first.stats.seed, **options
        )
    assert rest.token_ids == again.token_ids and rest.earlier_ids == first.token_ids


def test_e5_a_text_goes_on_within_a_character(bundle: Bundle) -> None:
    """The bytes of an emoji in two requests: the second shows it."""
    script = [*EMOJI_IDS[:2], *EMOJI_IDS[2:], 3]
    with local_runtime(bundle, native_drafter()) as edge:
        first = edge.generate(PROMPT, max_tokens=4, allowed_tokens=[EMOJI_IDS[0]])
        assert first.token_ids == [EMOJI_IDS[0]] * 4
        shown = edge.generate(
            PROMPT, max_tokens=1, continue_from=script[:3], allowed_tokens=[EMOJI_IDS[3]]
        ).text
    assert shown.encode() == bundle.vocabulary_table.token_bytes(EMOJI_IDS[0]) + b"".join(
        bundle.vocabulary_table.token_bytes(token) for token in EMOJI_IDS[1:]
    )


def test_e6_a_second_turn_builds_on_what_was_returned(bundle: Bundle) -> None:
    with local_runtime(bundle, native_drafter(disagreement=0.0), draft_length=8) as edge:
        whole = edge.generate(PROMPT, max_tokens=40)
        stop = whole.text[6:8]
        first = edge.generate(PROMPT, max_tokens=40, stop=stop)
        assert first.token_ids == whole.token_ids[: len(first.token_ids)]
        prompt = [*PROMPT, *first.token_ids, 8, 8]
        second = edge.generate(prompt, max_tokens=20)
    assert second.token_ids == plainly_by({}, 20, prompt=prompt)
    assert second.stats.reused_tokens >= len(PROMPT)


def expected_logprob(before: Sequence[int], token: int, top: int) -> tuple[float, list[int]]:
    row = TARGET.logits(list(before)).astype(np.float64)
    logs = row - row.max() - np.log(np.exp(row - row.max()).sum())
    return float(logs[token]), np.argsort(-logs, kind="stable")[:top].tolist()


@pytest.mark.parametrize("sampling", ["coupled", "residual"])
@pytest.mark.parametrize("mode", ["auto", "cloud"])
@pytest.mark.parametrize(("draft_length", "top"), [(0, 0), (1, 3), (5, 20)])
def test_l1_logprobs_are_the_targets_alone(
    bundle: Bundle, mode: Mode, draft_length: int, top: int, sampling: Sampling
) -> None:
    drafter = native_drafter(disagreement=0.4)
    with local_runtime(bundle, drafter, draft_length=draft_length) as edge:
        options: dict[str, Any] = {"max_tokens": 30, "logprobs": top, "mode": mode, "sampling": sampling}
        pieces = list(stream := edge.stream(PROMPT, frequency_penalty=0.5, **options, **SAMPLED))
        result = stream.result
        assert edge.generate(PROMPT, max_tokens=3).logprobs is None
    assert result.logprobs is not None and len(result.logprobs) == len(result.token_ids) == 30
    assert [entry for piece in pieces for entry in piece.logprobs or ()] == result.logprobs
    assert all(len(piece.logprobs or ()) == len(piece.token_ids) for piece in pieces)
    for place, entry in enumerate(result.logprobs):
        logprob, likeliest = expected_logprob([*PROMPT, *result.token_ids[:place]], entry.token, top)
        assert entry.token == result.token_ids[place]
        assert entry.bytes == bundle.vocabulary_table.token_bytes(entry.token)
        assert entry.logprob == pytest.approx(logprob, abs=1e-4) and entry.logprob != 0.0
        assert [other.token for other in entry.top] == likeliest
    assert json.loads(json.dumps(result.to_dict()))["logprobs"][0]["bytes"] == list(result.logprobs[0].bytes)


@pytest.mark.parametrize("mode", ["auto", "cloud"])
@pytest.mark.parametrize("sampling", ["coupled", "residual"])
@pytest.mark.parametrize("place", range(2, 14, 3))
def test_e3_text_ids_and_logprobs_end_together(
    bundle: Bundle, place: int, sampling: Sampling, mode: Mode
) -> None:
    with local_runtime(bundle, native_drafter(disagreement=0.1), draft_length=2) as edge:
        options: dict[str, Any] = {"max_tokens": 40, "sampling": sampling, "mode": mode, "logprobs": 1}
        whole = edge.generate(PROMPT, **options)
        stop = whole.text[place : place + 6]
        cut = whole.text.index(stop)
        pieces = list(stream := edge.stream(PROMPT, stop=stop, **options))
        result = stream.result
    assert result.text == whole.text[:cut] == "".join(piece.text for piece in pieces)
    assert result.finish_reason == "stop"
    assert result.logprobs is not None
    assert len(result.logprobs) == len(result.token_ids) == result.usage.completion_tokens
    assert result.token_ids == whole.token_ids[: len(result.token_ids)]
    assert sum(len(piece.logprobs or ()) for piece in pieces) == len(result.token_ids)


def test_s5_alone_and_among_eight_others(bundle: Bundle) -> None:
    options: dict[str, Any] = {"max_tokens": 30, "temperature": 1.0, "frequency_penalty": 0.4}
    results: dict[int, list[int]] = {}
    with served(bundle, verify_ms=1.0) as port, contextlib.ExitStack() as stack:
        url = f"ws://127.0.0.1:{port}/v1/spec"
        edges = [
            stack.enter_context(EdgeRuntime(bundle, url, drafter=native_drafter(), context=CONTEXT))
            for _ in range(9)
        ]

        def ask(seed: int) -> None:
            results[seed] = edges[seed].generate(PROMPT, seed=seed, **options).token_ids

        ask(0)
        alone = results.pop(0)
        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results[0] == alone == plainly_by({"temperature": 1.0, "frequency_penalty": 0.4, "seed": 0}, 30)
    assert len({tuple(ids) for ids in results.values()}) == 9


def test_many_generations_are_those_of_their_seeds(bundle: Bundle) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0}
    with local_runtime(bundle) as edge:
        results = edge.generate_many(PROMPT, n=4, seed=7, **options)
        assert [result.stats.seed for result in results] == [7, 8, 9, 10]
        for number, result in enumerate(results):
            assert result.token_ids == plainly_by({"temperature": 1.0, "seed": 7 + number}, 12)
        drawn = edge.generate_many(PROMPT, n=2, **options)
        assert drawn[1].stats.seed == drawn[0].stats.seed + 1
        assert len({tuple(result.token_ids) for result in results}) == 4
        with pytest.raises(UsageError, match="n is 0"):
            edge.generate_many(PROMPT, n=0)
        with pytest.raises(UsageError, match="with n = 2"):
            edge.generate_many(PROMPT, n=2, seed=(1 << 64) - 1)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"regex": "a", "json_schema": {}}, "exclude each other"),
        ({"regex": ""}, "regex is empty"),
        ({"json_schema": {"a": object()}}, "not valid JSON"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos is set"),
        ({"logprobs": 21}, "logprobs is 21"),
        ({"logprobs": 1, "mode": "edge"}, "mode 'edge' has none"),
        ({"sampling": "greedy"}, "sampling is 'greedy'"),
        ({"banned_tokens": [64]}, "banned_tokens names 64"),
        ({"allowed_tokens": [-1]}, "allowed_tokens names -1"),
        ({"allowed_tokens": []}, "allowed_tokens is empty"),
        ({"logit_bias": {64: 1.0}}, "logit_bias names 64"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"continue_from": [64]}, "64"),
    ],
)
def test_wrong_options_name_the_field(bundle: Bundle, options: dict[str, Any], complaint: str) -> None:
    edge = EdgeRuntime(with_eos(bundle, EOS), mode="edge", drafter=native_drafter(), context=CONTEXT)
    with edge, pytest.raises(UsageError, match=complaint):
        edge.generate(PROMPT, **options)


# Residual sampling.
