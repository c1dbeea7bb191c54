"""A cloud that goes on by itself while its edge is of no use, or not there, on the real clock."""

from __future__ import annotations

import time

import pytest

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from cloud_stub.local import LocalLink
from cloud_stub.scheduler import Pacing
from cloud_stub.service import Service, ServiceOptions
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.clock import steady, wait_until
from tests.integration.edge_cloud_kit import PROMPT, TARGET, native_drafter, plainly

STEP_MS = 20.0
TOKENS = 60


def service_for(bundle: Bundle) -> Service:
    verifier = ScriptedVerifier(TARGET.logits, bundle.vocabulary_table, max_context=512)
    return Service(verifier, ServiceOptions(pacing=Pacing(base_ms=STEP_MS)))


def seconds_of(bundle: Bundle, mode: str) -> float:
    """Of an answer, the second of its runtime, with a drafter that is always wrong."""
    drafter = native_drafter(disagreement=1.0)
    with EdgeRuntime(
        bundle, lambda: LocalLink(service_for(bundle)), drafter=drafter, context=256, mode=mode
    ) as edge:
        edge.generate(PROMPT, max_tokens=TOKENS)
        began = time.monotonic()
        result = edge.generate(PROMPT, max_tokens=TOKENS)
        seconds = time.monotonic() - began
    assert result.token_ids == plainly(PROMPT, TOKENS)
    return seconds


@pytest.mark.slow
def test_a_useless_drafter_leaves_the_target_as_fast_as_it_is_alone(bundle: Bundle) -> None:
    """Within 2 %, which a busy machine does not give: tests/python/test_policies_going_on.py asks the same of
    virtual time."""

    def check(times: tuple[float, float]) -> None:
        auto, alone = times
        assert auto <= alone / 0.98

    steady(lambda: (seconds_of(bundle, "auto"), seconds_of(bundle, "cloud")), check)


def test_the_text_of_an_edge_that_stops_is_complete_when_it_reads_again(bundle: Bundle) -> None:
    """It opens a request, sends a draft, and is gone until the cloud has done all the rest."""
    service = service_for(bundle)
    link = LocalLink(service)
    target = service.target
    try:
        for message in (
            _core.Hello(tokenizer=target.fingerprint, vocabulary=target.vocabulary),
            _core.Open(request=1, prompt=PROMPT, max_tokens=TOKENS, free_run=True),
            _core.Draft(request=1, round=1, base=len(PROMPT), tokens=[7, 7], free_run=True),
        ):
            link.send(_core.encode(message))
        wait_until(lambda: service.counters.read()["committed_tokens"] == TOKENS)
        heard = []
        while (received := link.receive(0.0)) is not None:
            heard.append(_core.decode(received.data))
    finally:
        link.close()
    verdicts = heard[1:]
    assert [token for verdict in verdicts for token in verdict.tokens] == plainly(PROMPT, TOKENS)
    assert verdicts[-1].finish == _core.Finish.length
