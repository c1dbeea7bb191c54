"""The native drafter against the verifier service, over a wire in memory.

Drafter and target are fake engines that disagree now and then. Whatever is drafted, cached, evicted or
rejected, the text must be what the target writes alone.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import shutil
import threading
from dataclasses import replace

import pytest

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import EngineError, UsageError
from acespec_edge.request import Mode
from acespec_edge.stats import Stats
from cloud_stub.local import LocalLink
from tests.clock import steady
from tests.integration.edge_cloud_kit import (
    CONTEXT,
    COUPLED,
    PROMPT,
    VECTORS,
    local_runtime,
    make_service,
    native_drafter,
    plainly,
    served,
)
from tests.python.fake_bundle import EOS, with_eos

pytestmark = pytest.mark.usefixtures("threads_end")


@pytest.mark.parametrize("draft_length", [0, 1, 2, 5, 8])
@pytest.mark.parametrize("width", [1, 4, 16])
def test_g2_greedy_equals_plain_decoding(bundle: Bundle, draft_length: int, width: int) -> None:
    drafter = native_drafter()
    with local_runtime(bundle, drafter, draft_length=draft_length, width=width, verify_ms=1.0) as edge:
        result = edge.generate(PROMPT, max_tokens=48)
        assert drafter.check() == []
    assert result.token_ids == plainly(PROMPT, 48)
    assert result.stats.rounds == 47 if draft_length == 0 else result.stats.rounds < 47


@pytest.mark.parametrize("draft_length", [0, 1, 2, 5, 8])
def test_coupled_sampling_equals_plain_decoding(bundle: Bundle, draft_length: int) -> None:
    with local_runtime(bundle, draft_length=draft_length, verify_ms=1.0) as edge:
        result = edge.generate(PROMPT, max_tokens=48, **COUPLED)
    assert result.token_ids == plainly(PROMPT, 48, _core.SamplingRules(**COUPLED))


@pytest.mark.parametrize("branches", [16, 20, 32])
@pytest.mark.parametrize("disagreement", [0.0, 0.3, 1.0])
def test_tiny_caches_change_nothing(bundle: Bundle, branches: int, disagreement: float) -> None:
    drafter = native_drafter(disagreement=disagreement, branches=branches)
    with local_runtime(bundle, drafter, width=8, verify_ms=1.0) as edge:
        for options in ({}, COUPLED):
            rules = _core.SamplingRules(**options)
            assert edge.generate(PROMPT, max_tokens=40, **options).token_ids == plainly(PROMPT, 40, rules)
            assert drafter.check() == []


def test_g1_one_word_repeated(bundle: Bundle) -> None:
    prompt = [7] * 48
    with local_runtime(bundle) as edge:
        assert edge.generate(prompt, max_tokens=32).token_ids == plainly(prompt, 32)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65])
def test_g3_prompt_lengths_around_the_chunks(bundle: Bundle, length: int) -> None:
    prompt = [(7 * index) % 60 for index in range(length)]
    with local_runtime(bundle) as edge:
        assert edge.generate(prompt, max_tokens=20).token_ids == plainly(prompt, 20)


@pytest.mark.parametrize("place", range(14))
def test_e1_stops_at_every_place_of_a_block(bundle: Bundle, place: int) -> None:
    whole = plainly(PROMPT, 40)
    stop = whole[place]
    expected = whole[: whole.index(stop) + 1]
    drafter = native_drafter(disagreement=0.0)
    with local_runtime(with_eos(bundle, stop), drafter, draft_length=5) as edge:
        result = edge.generate(PROMPT, max_tokens=40)
    assert (result.token_ids, result.finish_reason) == (expected, "stop")


@pytest.mark.parametrize("slack", range(-2, 12))
def test_c1_c2_around_both_contexts(bundle: Bundle, slack: int) -> None:
    context = len(PROMPT) + 16
    with local_runtime(bundle, max_context=context + slack, context=context) as edge:
        result = edge.generate(PROMPT, max_tokens=20)
    assert result.token_ids == plainly(PROMPT, min(20, 16 + slack))
    assert result.finish_reason == ("length" if 16 + slack >= 20 else "context")


@pytest.mark.parametrize("mode", ["auto", "cloud"])
def test_c3_prompts_around_the_targets_limit_over_websockets(bundle: Bundle, mode: Mode) -> None:
    with served(bundle, max_context=40) as port:
        url = f"ws://127.0.0.1:{port}/v1/spec"
        with EdgeRuntime(bundle, url, drafter=native_drafter(), context=CONTEXT, mode=mode) as edge:
            for empty in ("", [], ()):
                with pytest.raises(UsageError, match="prompt is empty"):
                    edge.generate(empty)
            for length in (40, 41, 400):
                words = rf"prompt has {length} tokens: .* holds 40 tokens, .* so 39 are the most"
                with pytest.raises(UsageError, match=words):
                    edge.generate([7] * length)
            for prompt in ([5], edge.bundle.vocabulary_table.encode(" \n "), [7] * 38, [7] * 39):
                result = edge.generate(prompt, max_tokens=12)
                room = min(12, 40 - len(prompt))
                assert result.token_ids == plainly(prompt, room)
                assert result.finish_reason == ("length" if room == 12 else "context")
            assert edge.generate(" \n ", max_tokens=2).usage.prompt_tokens == 3


def test_c3_a_cloud_answers_a_prompt_it_cannot_serve_and_lives(bundle: Bundle) -> None:
    """An edge that does not check by itself is told both numbers, and its session goes on."""
    with contextlib.closing(make_service(bundle, max_context=40)) as service:
        link = LocalLink(service)
        table = bundle.vocabulary_table
        hello = _core.Hello(tokenizer=table.fingerprint, vocabulary=table.size, drafter="careless")
        opens = [
            _core.Open(request=number + 1, prompt=prompt, max_tokens=1)
            for number, prompt in enumerate(([], [7] * 40, [7] * 39))
        ]
        for message in (hello, *opens):
            link.send(_core.encode(message))
        answers = []
        while len(answers) < 4:
            received = link.receive(5.0)
            assert received is not None
            answers.append(_core.decode(received.data))
    welcome, empty, long, served_one = answers
    assert isinstance(welcome, _core.Welcome)
    assert "prompt is empty" in empty.message
    assert "40 tokens" in long.message and "at most 39" in long.message
    assert served_one.tokens == plainly([7] * 39, 1)


@pytest.mark.parametrize("length", [1, 30, 31, 32])
def test_c3_edge_mode_up_to_the_drafters_limit(bundle: Bundle, length: int) -> None:
    drafter = native_drafter(disagreement=0.0, context=32)
    with EdgeRuntime(bundle, mode="edge", drafter=drafter, context=32) as edge:
        result = edge.generate([7] * length, max_tokens=64)
    assert result.token_ids == plainly([7] * length, 32 - length)
    assert result.finish_reason == "context"


@pytest.mark.parametrize("length", [31, 32, 33, 90])
def test_c2_a_prompt_beyond_the_drafters_context_is_the_targets_alone(bundle: Bundle, length: int) -> None:
    with local_runtime(bundle, context=32, max_context=100) as edge:
        result = edge.generate([7] * length, max_tokens=20)
    assert result.token_ids == plainly([7] * length, min(20, 100 - length))
    assert result.finish_reason == ("length" if length < 90 else "context")


def test_a_second_turn_reuses_the_first(bundle: Bundle) -> None:
    with local_runtime(bundle) as edge:
        first = edge.generate(PROMPT, max_tokens=12)
        prompt = [*PROMPT, *first.token_ids, 8, 8]
        second = edge.generate(prompt, max_tokens=12)
    assert second.token_ids == plainly(prompt, 12)
    assert second.stats.reused_tokens >= len(PROMPT)


def test_a_good_drafter_hits_and_saves_rounds(bundle: Bundle) -> None:
    drafter = native_drafter(disagreement=0.1)
    with local_runtime(bundle, drafter, verify_ms=5.0) as edge:

        def measured() -> Stats:
            stats = edge.generate(PROMPT, max_tokens=100).stats
            assert stats.verify_ms >= 5.0
            assert 0 < stats.max_draft_bytes < 512
            return stats

        def hits(stats: Stats) -> None:
            assert stats.tokens_per_round > 4
            assert stats.hit_rate > 0.6

        steady(measured, hits)


def test_s5_a_seed_gives_its_text_again_and_seeds_differ(bundle: Bundle) -> None:
    with local_runtime(bundle) as edge:
        options = {"max_tokens": 24, "temperature": 1.0}
        texts = {seed: edge.generate(PROMPT, seed=seed, **options).token_ids for seed in range(8)}
        assert len({tuple(text) for text in texts.values()}) > 1
        drawn = edge.generate(PROMPT, **options)
        assert edge.generate(PROMPT, seed=drawn.stats.seed, **options).token_ids == drawn.token_ids
        assert edge.generate(PROMPT, seed=3, **options).token_ids == texts[3]


@pytest.mark.native
def test_many_requests_leave_memory_and_threads_flat(bundle: Bundle) -> None:
    with local_runtime(bundle) as edge:

        def ask(count: int) -> None:
            for index in range(count):
                edge.generate([index % 60, 2, 3], max_tokens=16, stop="zzz")

        ask(50)
        gc.collect()
        threads, memory = threading.active_count(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ask(200)
        assert threading.active_count() <= threads
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 4096  # KiB


def test_eos_of_the_bundle_ends_a_request(bundle: Bundle) -> None:
    with local_runtime(with_eos(bundle, EOS)) as edge:
        result = edge.generate(PROMPT, max_tokens=200)
    assert result.token_ids == plainly(PROMPT, 200, stop=[EOS])


def test_the_bundles_own_model_is_loaded_and_drafts(bundle: Bundle) -> None:
    shutil.copy(VECTORS / "tiny_model.onnx", bundle.model_file)
    own = replace(bundle, layers=2, kv_width=16, max_positions=512)
    with EdgeRuntime(own, lambda: LocalLink(make_service(bundle)), cache_mb=1, context=CONTEXT) as edge:
        result = edge.generate(PROMPT, max_tokens=20)
        alone = edge.generate(PROMPT, max_tokens=20, mode="edge")
    assert result.token_ids == plainly(PROMPT, 20)
    assert result.stats.forwards > 0
    assert len(alone.token_ids) == 20


def test_a_cache_too_small_for_the_model_says_what_is_enough(bundle: Bundle) -> None:
    wide = replace(bundle, layers=32, kv_width=1024)
    with pytest.raises(UsageError, match="cache_mb is 3: for fake-64 it must be 4 or more"):
        EdgeRuntime(wide, mode="edge", cache_mb=3)


def test_a_model_that_does_not_load_leaves_no_connection(bundle: Bundle) -> None:
    bundle.model_file.write_bytes(b"no model")
    service = make_service(bundle)
    with contextlib.closing(service):
        with pytest.raises(EngineError, match=r"model\.onnx"):
            EdgeRuntime(bundle, lambda: LocalLink(service), cache_mb=1, context=CONTEXT)
        assert service.sessions == 0


def test_edge_mode_is_the_drafter_alone(bundle: Bundle) -> None:
    drafter = native_drafter(disagreement=0.0, context=32)
    with EdgeRuntime(bundle, mode="edge", drafter=drafter, context=32) as edge:
        for options in ({}, COUPLED):
            rules = _core.SamplingRules(**options)
            result = edge.generate(PROMPT, max_tokens=64, **options)
            assert result.token_ids == plainly(PROMPT, 32 - len(PROMPT), rules)
            assert result.finish_reason == "context"
        with pytest.raises(UsageError, match="33 tokens, the drafter's context holds 32"):
            edge.generate([1] * 33)
