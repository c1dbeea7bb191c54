"""Edges on a cloud that drafts for itself: they take what it pushes, and know what it yields."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from acespec_edge import EdgeRuntime, _core
from acespec_edge.control import Controller
from acespec_edge.policy import POLICIES, Policy
from acespec_edge.session_events import Committed
from cloud_stub.continuation import SelfDrafting
from cloud_stub.local import connect
from cloud_stub.verifiers.scripted import ScriptedHandle, ScriptedVerifier
from tests.python.fake_bundle import make_bundle

PROMPT = [5, 9, 2, 7]
SIZE = 64


def engine(slots: int, disagreement: float = 0.0) -> _core.FakeEngine:
    return _core.FakeEngine(SIZE, slots, seed=3, disagreement=disagreement, max_rows=16)


TARGET = engine(64)


class Guesses:
    """Proposes what the target says, three times in four."""

    longest = 5

    def __init__(self) -> None:
        self._sampler = _core.Sampler(SIZE)
        self._random = random.Random(4)
        self.proposed = 0

    def propose(
        self, handle: Any, tip: int, position: int, rules: _core.SamplingRules, count: int, least: float
    ) -> list[int]:
        assert isinstance(handle, ScriptedHandle)
        text, tokens = [*handle._committed, tip], []
        for place in range(count):
            token = self._sampler.choose(TARGET.logits([*text, *tokens]), rules, position + place)
            tokens.append(token if self._random.random() < 0.75 else (token + 1) % SIZE)
        self.proposed += len(tokens)
        return tokens


GO_ON = [
    Policy("auto-going-on", go_on=True),
    dataclasses.replace(POLICIES["chain"], name="chain-going-on", go_on=True),
    Policy("cloud", cloud_only=True),
]


@pytest.mark.parametrize("policy", [*GO_ON, POLICIES["auto"]], ids=lambda policy: policy.name)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("disagreement", [0.15, 1.0])
def test_what_is_pushed_is_the_targets_text(
    tmp_path: Path, policy: Policy, temperature: float, disagreement: float
) -> None:
    """Also with a drafter of no use."""
    bundle = make_bundle(tmp_path / "bundle", eos_ids=())
    verifier = ScriptedVerifier(lambda text: TARGET.logits(list(text)), bundle.vocabulary_table)
    rules = _core.SamplingRules(temperature=temperature, seed=11)
    sampler = _core.Sampler(SIZE)
    expected: list[int] = []
    while len(expected) < 60:
        text = [*PROMPT, *expected]
        expected.append(sampler.choose(TARGET.logits(text), rules, len(text)))
    guesses = Guesses()
    drafter = _core.Drafter(engine(512, disagreement), _core.DrafterOptions(context=128))
    cloud = SelfDrafting(guesses, 8.0)
    with EdgeRuntime(
        bundle, lambda: connect(verifier, self_drafting=cloud), drafter=drafter, context=128, policy=policy
    ) as edge:
        for most in (60, 7):
            result = edge.generate(PROMPT, max_tokens=most, temperature=temperature, seed=11)
            assert result.token_ids == expected[:most] and result.finish_reason == "length"
    assert guesses.proposed or policy.go_on is None


def test_the_edge_counts_what_a_plain_step_yields() -> None:
    """Else it would take a cloud that drafts for itself for as slow as its steps."""
    control = Controller(POLICIES["auto"], width=8)
    for _ in range(60):
        control.answered(Committed([1, 2, 3], 0, _core.Finish.none, 1.0, verify=0.1))
    assert control.alone == pytest.approx(3 / 0.1, rel=0.05)
    control.answered(Committed([], 0, _core.Finish.stop, 1.0, verify=0.1))
    assert control.alone == pytest.approx(3 / 0.1, rel=0.05), "the end of a request is no step"
