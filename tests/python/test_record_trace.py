"""A recording is what target and drafter say, and a simulation of it what a real run does."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from acespec_edge import EdgeRuntime, _core
from acespec_edge.policy import POLICIES
from acespec_edge.simulate.link import Network
from acespec_edge.simulate.profiles import cloud_profile, edge_profile
from acespec_edge.simulate.runner import Setting, simulate
from acespec_edge.simulate.trace import Record, Timing, Trace
from cloud_stub.local import connect
from cloud_stub.simulate import VirtualCloud
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.python.fake_bundle import make_bundle
from tools.record_trace import Drafter, Target, main

PROMPT = [5, 9, 2, 7]


def engine(vocabulary: int, slots: int, disagreement: float = 0.15) -> _core.FakeEngine:
    return _core.FakeEngine(vocabulary, slots, seed=3, disagreement=disagreement, max_rows=16)


def recorded(vocabulary: int, tokens: int, temperature: float = 0.0, top: int = 8) -> Trace:
    model = engine(vocabulary, 64, disagreement=0.0)

    class Scripted(ScriptedVerifier):
        def __init__(self) -> None:
            super().__init__(lambda text: model.logits(list(text)), None, logits_width=vocabulary)  # type: ignore[arg-type]

    target = Target(Scripted(), vocabulary, [], temperature)
    text = target.answer(PROMPT, tokens, seed=11)
    drafter = Drafter(lambda slots: engine(vocabulary, slots), vocabulary, top)
    record = Record("fake/0", "chat", 11, PROMPT, text, *drafter.read(PROMPT, text))
    timing = Timing(drafter.milliseconds(), target.milliseconds(), target.prefill_milliseconds())
    return Trace("fake", "a drafter", "a target", vocabulary, temperature, (), [record], timing=timing)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_position_has_what_drafter_and_target_say_there(temperature: float) -> None:
    (record,) = recorded(64, 50, temperature).records
    drafter, target = engine(64, 64), engine(64, 64, disagreement=0.0)
    sampler = _core.Sampler(64)
    rules = _core.SamplingRules(temperature=temperature, seed=11)
    for at, token in enumerate(record.text):
        before = [*PROMPT, *record.text[:at]]
        assert sampler.choose(target.logits(before), rules, len(before)) == token
        logits = drafter.logits(before)
        assert record.top[at].tolist() == np.argsort(-logits, kind="stable")[:8].tolist()
        log_p = logits - np.log(np.exp(logits).sum())
        np.testing.assert_allclose(record.scores[at], log_p[record.top[at]], atol=5e-3)


def test_forwards_are_timed_by_their_size() -> None:
    timing = recorded(64, 60).timing
    assert set(timing.edge_ms) == {1, 2, 4, 8, 16}
    assert set(timing.cloud_ms) == {0, 1, 4, 16}
    assert all(ms > 0 for ms in (*timing.edge_ms.values(), *timing.cloud_ms.values(), timing.prefill_ms))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_simulated_run_takes_the_rounds_of_a_real_one(tmp_path: Path, temperature: float) -> None:
    bundle = make_bundle(tmp_path / "bundle", eos_ids=())
    # Under sampling the drafter may draw any id, so all are recorded.
    trace = recorded(bundle.vocabulary, 60, temperature, top=bundle.vocabulary)
    model = engine(bundle.vocabulary, 64, disagreement=0.0)
    verifier = ScriptedVerifier(lambda text: model.logits(list(text)), bundle.vocabulary_table)
    drafter = _core.Drafter(engine(bundle.vocabulary, 512), _core.DrafterOptions(context=128))
    with EdgeRuntime(bundle, lambda: connect(verifier), drafter=drafter, context=128, draft_length=8) as edge:
        real = edge.generate(PROMPT, max_tokens=60, temperature=temperature, seed=11)
    assert real.token_ids == trace.records[0].text
    setting = Setting(
        dataclasses.replace(trace, stop_ids=()),
        edge_profile("rk3588-0.5b"),
        cloud_profile("50,1"),
        Network(0.1),
        dataclasses.replace(POLICIES["chain"], length=8),
    )
    (simulated,) = simulate(setting, VirtualCloud).answers
    assert simulated.stats.rounds == pytest.approx(real.stats.rounds, abs=1)
    assert simulated.stats.accepted_mean == pytest.approx(real.stats.accepted_mean, rel=0.15)


@pytest.mark.parametrize("option", ["--prompts", "--tokens", "--top"])
def test_bad_numbers_are_named(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "x"), option, "0"]) == 2
    assert f"{option[2:]} is 0: give 1 or more" in capsys.readouterr().err
