"""Every policy over real threads: the native drafter against the verifier service, in real time.

Whatever is sent when, the text is what the target writes alone.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.policy import POLICIES
from acespec_edge.wan import wan_thread
from cloud_stub.local import LocalLink
from cloud_stub.scheduler import Pacing
from cloud_stub.service import Service, ServiceOptions
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.integration.edge_cloud_kit import (
    CONTEXT,
    COUPLED,
    PROMPT,
    TARGET,
    native_drafter,
    plainly,
    served,
)
from tests.python.fake_bundle import EOS, make_bundle, with_eos

pytestmark = pytest.mark.usefixtures("threads_end")

NAMES = ["auto", "chain", "tree", "in-flight", "picospec", "one-bet", "acespec"]


@pytest.fixture
def bundle(tmp_path: Any) -> Bundle:
    return make_bundle(tmp_path / "bundle", eos_ids=())


def paced(
    bundle: Bundle,
    policy: str,
    drafter: _core.Drafter | None = None,
    *,
    base_ms: float = 2.0,
    node_ms: float = 0.0,
    max_context: int = 512,
    max_nodes: int = 256,
    **options: Any,
) -> EdgeRuntime:
    """A verifier that takes its time, in this process."""
    verifier = ScriptedVerifier(TARGET.logits, bundle.vocabulary_table, max_context=max_context)
    pacing = Pacing(base_ms=base_ms, per_node_ms=node_ms)
    service = Service(verifier, ServiceOptions(pacing=pacing, max_nodes=max_nodes))
    options.setdefault("context", CONTEXT)
    return EdgeRuntime(
        bundle,
        lambda: LocalLink(service),
        drafter=drafter or native_drafter(context=options["context"]),
        policy=policy,
        **options,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_text_equals_plain_decoding_request_after_request(bundle: Bundle, policy: str) -> None:
    drafter = native_drafter()
    with paced(bundle, policy, drafter) as edge:
        for number in range(3):
            for options in ({}, COUPLED | {"seed": number}):
                prompt = [*PROMPT, number]
                rules = _core.SamplingRules(**options)
                result = edge.generate(prompt, max_tokens=48, **options)
                assert result.token_ids == plainly(prompt, 48, rules)
                assert result.stats.policy == policy
                assert sum(result.stats.chosen.values()) > 0
                assert drafter.check() == []


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("disagreement", [0.0, 0.5, 1.0])
def test_good_and_bad_drafters(bundle: Bundle, policy: str, disagreement: float) -> None:
    drafter = native_drafter(disagreement=disagreement, branches=32)
    with paced(bundle, policy, drafter, base_ms=1.0, node_ms=0.1) as edge:
        assert edge.generate(PROMPT, max_tokens=60).token_ids == plainly(PROMPT, 60)
        assert drafter.check() == []


@pytest.mark.parametrize("policy", ["auto", "tree", "in-flight", "picospec"])
def test_over_websockets(bundle: Bundle, policy: str) -> None:
    with served(bundle, verify_ms=3.0) as port:
        url = f"ws://127.0.0.1:{port}/v1/spec"
        with EdgeRuntime(bundle, url, drafter=native_drafter(), context=CONTEXT, policy=policy) as edge:
            for options in ({}, COUPLED):
                rules = _core.SamplingRules(**options)
                assert edge.generate(PROMPT, max_tokens=40, **options).token_ids == plainly(PROMPT, 40, rules)


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("most", [1, 2, 3, 5, 9])
def test_few_tokens(bundle: Bundle, policy: str, most: int) -> None:
    with paced(bundle, policy, base_ms=1.0) as edge:
        for _ in range(3):
            result = edge.generate(PROMPT, max_tokens=most)
            assert result.token_ids == plainly(PROMPT, most)
            assert result.finish_reason == "length"


@pytest.mark.parametrize("policy", NAMES)
def test_stop_ids_end_the_text_at_every_place(bundle: Bundle, policy: str) -> None:
    whole = plainly(PROMPT, 24)
    for stop in dict.fromkeys(whole[:12]):
        expected = whole[: whole.index(stop) + 1]
        with paced(with_eos(bundle, stop), policy, native_drafter(disagreement=0.0)) as edge:
            result = edge.generate(PROMPT, max_tokens=24)
        assert (result.token_ids, result.finish_reason) == (expected, "stop")


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("slack", [-2, -1, 0, 1, 2, 6])
def test_around_both_contexts(bundle: Bundle, policy: str, slack: int) -> None:
    """The drafter's context ends first, or the target's does."""
    context = len(PROMPT) + 16
    with paced(bundle, policy, max_context=context + slack, context=context) as edge:
        for _ in range(2):
            result = edge.generate(PROMPT, max_tokens=20)
            assert result.token_ids == plainly(PROMPT, min(20, 16 + slack))
            assert result.finish_reason == ("length" if 16 + slack >= 20 else "context")


@pytest.mark.parametrize("policy", ["auto", "tree", "in-flight", "picospec"])
@pytest.mark.parametrize("nodes", [1, 2, 7])
def test_a_cloud_that_takes_few_nodes(bundle: Bundle, policy: str, nodes: int) -> None:
    with paced(bundle, policy, max_nodes=nodes) as edge:
        assert edge.generate(PROMPT, max_tokens=40).token_ids == plainly(PROMPT, 40)


def test_log_probabilities_are_the_targets(bundle: Bundle) -> None:
    with paced(bundle, "auto") as edge:
        for options in ({}, COUPLED):
            ours = edge.generate(PROMPT, max_tokens=40, logprobs=2, **options)
            alone = edge.generate(PROMPT, max_tokens=40, logprobs=2, mode="cloud", **options)
            assert ours.token_ids == alone.token_ids
            assert ours.logprobs is not None and alone.logprobs is not None
            assert len(ours.logprobs) == 40
            for one, other in zip(ours.logprobs, alone.logprobs, strict=True):
                assert one.token == other.token
                assert one.logprob == pytest.approx(other.logprob, abs=1e-5)


def test_stop_strings_end_where_the_target_alone_would(bundle: Bundle) -> None:
    with paced(bundle, "auto") as edge:
        text = edge.generate(PROMPT, max_tokens=40, mode="cloud").text
        for place in (3, 9, 20):
            stop = text[place : place + 2]
            for mode in ("auto", "cloud"):
                result = edge.generate(PROMPT, max_tokens=40, stop=stop, mode=mode)
                assert result.text == text[: text.index(stop)]
                assert result.finish_reason == "stop"


@pytest.mark.parametrize("policy", ["auto", "tree", "in-flight"])
def test_a_grammar_holds(bundle: Bundle, policy: str) -> None:
    with paced(with_eos(bundle, EOS), policy) as edge:
        for options in ({}, COUPLED):
            given = {"max_tokens": 30, "regex": "[a-m]{4}( [n-z0-9]{3}){3}", **options}
            ours = edge.generate(PROMPT, **given)
            assert ours.token_ids == edge.generate(PROMPT, mode="cloud", **given).token_ids
            assert re.fullmatch("[a-m]{4}( [n-z0-9]{3}){3}", ours.text)


def test_residual_mode_under_every_policy_gives_text_of_the_length_asked_for(bundle: Bundle) -> None:
    for policy in ("auto", "in-flight", "picospec", "chain"):
        drafter = native_drafter()
        with paced(bundle, policy, drafter) as edge:
            for seed in range(4):
                result = edge.generate(
                    PROMPT, max_tokens=40, temperature=1.0, seed=seed, sampling="residual", logprobs=0
                )
                assert len(result.token_ids) == 40
                assert result.logprobs is not None
                assert [one.token for one in result.logprobs] == result.token_ids
                assert drafter.check() == []
            # And the greedy text behind it is what it always is.
            assert edge.generate(PROMPT, max_tokens=30).token_ids == plainly(PROMPT, 30)


@pytest.mark.parametrize("policy", NAMES)
def test_cancelled_in_mid_flight_and_asked_again(bundle: Bundle, policy: str) -> None:
    with paced(bundle, policy, base_ms=4.0) as edge:
        for after in (1, 2, 3, 5, 8):
            stream = edge.stream(PROMPT, max_tokens=200)
            for number, _ in enumerate(stream, 1):
                if number == after:
                    break
            stream.close()
            assert stream.result.finish_reason == "cancelled"
            got = stream.result.token_ids
            assert got == plainly(PROMPT, len(got))
            assert edge.generate(PROMPT, max_tokens=12).token_ids == plainly(PROMPT, 12)


@pytest.mark.parametrize("policy", ["auto", "in-flight"])
def test_requests_from_many_threads_take_turns(bundle: Bundle, policy: str) -> None:
    results: dict[int, Sequence[int]] = {}
    with paced(bundle, policy, base_ms=1.0) as edge:

        def ask(number: int) -> None:
            results[number] = edge.generate([number, *PROMPT], max_tokens=24).token_ids

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
    assert results == {number: plainly([number, *PROMPT], 24) for number in range(6)}


def test_many_requests_on_one_connection(bundle: Bundle) -> None:
    """Rounds and numbers of nodes start anew; estimates go on."""
    drafter = native_drafter()
    with paced(bundle, "auto", drafter, base_ms=0.5) as edge:
        for number in range(40):
            prompt = [number % 60, *PROMPT[: 1 + number % 7]]
            count = 1 + number % 23
            mode = "cloud" if number % 5 == 4 else "auto"
            assert edge.generate(prompt, max_tokens=count, mode=mode).token_ids == plainly(prompt, count)
        assert drafter.check() == []


@pytest.mark.parametrize("policy", ["auto", "in-flight"])
def test_n_answers_are_those_of_their_seeds(bundle: Bundle, policy: str) -> None:
    options = {"max_tokens": 24, "temperature": 1.0}
    with paced(bundle, policy) as edge:
        several = edge.generate_many(PROMPT, n=3, seed=7, **options)
    for number, result in enumerate(several):
        rules = _core.SamplingRules(temperature=1.0, seed=7 + number)
        assert result.token_ids == plainly(PROMPT, 24, rules)
        assert result.stats.seed == 7 + number


def test_a_target_far_faster_than_the_drafter_is_left_alone(bundle: Bundle) -> None:
    """And drafting never gets in its way, nor the text wrong."""
    drafter = native_drafter(disagreement=1.0)
    with paced(bundle, "auto", drafter, base_ms=0.0) as edge:
        for _ in range(3):
            result = edge.generate(PROMPT, max_tokens=150)
            assert result.token_ids == plainly(PROMPT, 150)
    assert result.stats.chosen.get("cloud", 0) > 0


@pytest.mark.parametrize("policy", ["auto", "in-flight", "picospec", "tree"])
def test_over_an_emulated_wide_area_network(bundle: Bundle, policy: str) -> None:
    """30 ms there and back: drafts, deltas and verdicts really cross."""
    with served(bundle, verify_ms=10.0) as port, wan_thread(f"127.0.0.1:{port}", rtt=0.03) as address:
        url = f"ws://{address}/v1/spec"
        drafter = native_drafter(disagreement=0.1)
        with EdgeRuntime(bundle, url, drafter=drafter, context=CONTEXT, policy=policy) as edge:
            for options in ({}, COUPLED):
                rules = _core.SamplingRules(**options)
                for most in (30, 60):
                    result = edge.generate(PROMPT, max_tokens=most, **options)
                    assert result.token_ids == plainly(PROMPT, most, rules)
            assert drafter.check() == []
            if policy in ("in-flight", "picospec"):
                assert result.stats.chosen.get("in-flight", 0) > 0
