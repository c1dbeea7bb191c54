"""Whole simulated runs: exact text, exact time, shared clouds, the same figures every time."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec_edge import _core
from acespec_edge.cli import main
from acespec_edge.errors import UsageError
from acespec_edge.simulate.clock import SimulationError, World
from acespec_edge.simulate.figures import figures
from acespec_edge.simulate.link import Network
from acespec_edge.simulate.profiles import CloudProfile, EdgeProfile
from acespec_edge.simulate.runner import CLOUD, Outcome, Setting, policies, simulate
from acespec_edge.simulate.timed_drafter import TimedDrafter
from acespec_edge.simulate.trace import Trace
from cloud_stub.simulate import VirtualCloud
from tests.python.simulate_kit import VOCABULARY, trace

EDGE = EdgeProfile("edge", {1: 8.0, 8: 15.0})
TARGET = CloudProfile.affine("cloud", base_ms=50.0, per_node_ms=1.0, prefill_ms=2.0)
WAN = Network(0.1, 1e6, 1e7)
INSTANT = Network(0.0)


def run(
    policy: str,
    recorded: Trace | None = None,
    network: Network = WAN,
    clients: int = 1,
    requests: int | None = None,
) -> Outcome:
    setting = Setting(recorded or trace(), EDGE, TARGET, network, policy, clients, requests)
    return simulate(setting, VirtualCloud)


@pytest.mark.parametrize("policy", policies())
@pytest.mark.parametrize("clients", [1, 3])
def test_every_policy_gives_the_recorded_text(policy: str, clients: int) -> None:
    recorded = trace()
    outcome = run(policy, recorded, clients=clients)
    assert len(outcome.answers) == clients * len(recorded.records)
    for answer in outcome.answers:
        assert answer.tokens == answer.record.text


@pytest.mark.parametrize("policy", policies())
def test_the_same_setting_gives_the_same_outcome(policy: str) -> None:
    jittery = dataclasses.replace(WAN, jitter=0.03)
    first, second = (run(policy, network=jittery, clients=2) for _ in range(2))
    assert first.seconds == second.seconds
    assert [(a.client, a.shown, a.stats) for a in first.answers] == [
        (a.client, a.shown, a.stats) for a in second.answers
    ]


def test_the_cloud_alone_streams_at_the_rate_of_its_forwards() -> None:
    outcome = run(CLOUD, trace(records=1), INSTANT)
    (answer,) = outcome.answers
    prefill = 0.05 + 10 * 0.002
    assert answer.shown == pytest.approx([prefill + 0.05 * number for number in range(40)], abs=1e-9)
    assert outcome.forwards == 40
    assert outcome.busy == pytest.approx(prefill + 39 * 0.05)
    assert answer.stats.tokens_per_second == pytest.approx(1 / 0.05)


def test_the_first_token_takes_a_round_trip_its_bytes_and_the_prefill() -> None:
    outcome = run(CLOUD, trace(records=1, tokens=1), Network(0.1, 50e3, None))
    (answer,) = outcome.answers
    up = (answer.stats.bytes_up + 6 + 40) * 8 / 50e3
    assert answer.shown == pytest.approx([0.1 + up + 0.05 + 10 * 0.002], abs=1e-9)


def test_one_round_of_a_chain_takes_what_it_is_made_of() -> None:
    """Prompt of 10, text of 3; the drafter reads the prompt while the first token is on its way, and is
    right about everything: second and third token come with the next verdict."""
    recorded = trace(records=1, tokens=3, right=1.0)
    outcome = run("chain", recorded, Network(1.0))
    (answer,) = outcome.answers
    first = 1.0 + 0.05 + 10 * 0.002
    # Drafted before the first verdict came; 3 tokens in all leave room for one drafted and the target's own.
    second = first + 1.0 + 0.05 + 1 * 0.001
    assert answer.shown == pytest.approx([first, second, second], abs=1e-9)
    assert (answer.stats.rounds, answer.stats.accepted_mean) == (1, 1.0)
    assert outcome.verified_nodes == 1


def test_a_forward_takes_the_profiles_time_for_its_rows_and_lets_others_live() -> None:
    recorded = trace(records=1)
    (record,) = recorded.records
    world = World()
    seen: list[float] = []

    def live() -> None:
        drafter = TimedDrafter(world, EDGE, recorded)
        drafter.replay(record)
        drafter.begin(record.prompt, _core.SamplingRules(), [], False)
        world.at(0.01, lambda: seen.append(world()))
        expected = 0.0
        for rows, report in ((10, drafter.step(8, False)), (4, drafter.step(8, False))):
            assert (report.rows, report.seconds) == (rows, EDGE.seconds(rows))
            expected += EDGE.seconds(rows)
        assert world() == pytest.approx(expected)
        assert seen == [0.01]
        while not drafter.step(8, False).exhausted:
            pass
        idle = world()
        assert drafter.step(8, False).seconds == 0.0
        assert world() == idle

    world.spawn(live)
    world.run()
    assert seen


def test_two_clients_take_turns_at_the_target() -> None:
    """Both stream alone: every forward of one waits for one of the other, so each has half the rate; and the
    prompts are served in the order of their arrival."""
    recorded = trace(records=2, tokens=20)
    outcome = run(CLOUD, recorded, INSTANT, clients=2, requests=1)
    prefill = 0.05 + 10 * 0.002
    by_client = {answer.client: answer.shown for answer in outcome.answers}
    assert by_client[0][0] == pytest.approx(prefill)
    assert by_client[1][0] == pytest.approx(2 * prefill)
    # From the second prefill on, turns of 50 ms each.
    assert by_client[0][1:] == pytest.approx([2 * prefill + 0.05 + 0.1 * turn for turn in range(19)])
    assert by_client[1][1:] == pytest.approx([2 * prefill + 0.1 + 0.1 * turn for turn in range(19)])
    assert outcome.busy == pytest.approx(outcome.seconds)


def test_a_stop_id_ends_the_answer_and_sampled_text_is_reproduced() -> None:
    recorded = dataclasses.replace(trace(stop=1), temperature=0.8)
    for policy in policies():
        for answer in run(policy, recorded).answers:
            assert answer.tokens[-1] == 1


def test_sampled_choices_follow_the_shared_noise() -> None:
    """Text drawn by the drafter's own scores and the noise of its seed: the drafter foresees all of it."""
    recorded = dataclasses.replace(trace(records=1), temperature=1.0)
    (record,) = recorded.records
    rules = _core.SamplingRules(temperature=1.0, seed=record.seed)
    sampler = _core.Sampler(VOCABULARY)
    text = []
    for number, (top, scores) in enumerate(zip(record.top, record.scores, strict=True)):
        row = np.full(VOCABULARY, -np.inf, np.float32)
        row[top] = scores
        text.append(sampler.choose(row, rules, len(record.prompt) + number))
    drawn = dataclasses.replace(recorded, records=[dataclasses.replace(record, text=text)])
    assert text != record.text
    outcome = run("chain", drawn, Network(1.0))
    (answer,) = outcome.answers
    assert outcome.verified_nodes > 0
    assert answer.stats.accepted_mean * answer.stats.rounds == pytest.approx(outcome.verified_nodes)


def test_an_answer_that_is_not_the_recorded_one_is_an_error() -> None:
    recorded = trace(records=2)
    second = recorded.records[1]

    def confused(*arguments: object) -> VirtualCloud:
        cloud = VirtualCloud(*arguments)  # type: ignore[arg-type]
        cloud.record_of = lambda start: second  # type: ignore[method-assign]
        return cloud

    setting = Setting(recorded, EDGE, TARGET, WAN, CLOUD, requests=1)
    with pytest.raises(SimulationError, match="made-up/0 is not what was recorded"):
        simulate(setting, confused)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="policy is 'magic'"):
        run("magic")
    with pytest.raises(UsageError, match="clients is 0"):
        run(CLOUD, clients=0)


def test_figures_add_up() -> None:
    alone = figures(CLOUD, run(CLOUD, network=INSTANT))
    assert alone.speedup == 1.0
    assert alone.tokens == 120
    assert alone.tokens_per_second == pytest.approx(40 / (0.07 + 39 * 0.05))
    assert (alone.edge_forwards, alone.cloud_forwards, alone.cloud_nodes) == (0.0, 1.0, 0.0)
    chain = figures("chain", run("chain"), cloud_alone=alone.tokens_per_second)
    assert chain.speedup == pytest.approx(chain.tokens_per_second / alone.tokens_per_second)
    assert 0 < chain.cloud_busy < 1
    assert chain.cloud_forwards < 1 < chain.edge_forwards


@settings(deadline=None, max_examples=25)
@given(
    policy=st.sampled_from(policies()),
    clients=st.integers(1, 3),
    rtt=st.sampled_from([0.0, 0.02, 0.3]),
    rate=st.sampled_from([5e3, 1e6, None]),
    jitter=st.sampled_from([0.0, 0.01]),
    right=st.sampled_from([0.0, 0.6, 1.0]),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_whatever_the_setting_the_text_is_exact_and_time_adds_up(
    policy: str,
    clients: int,
    rtt: float,
    rate: float | None,
    jitter: float,
    right: float,
    temperature: float,
) -> None:
    recorded = dataclasses.replace(trace(records=2, tokens=25, right=right), temperature=temperature)
    outcome = run(policy, recorded, Network(rtt, rate, rate, jitter), clients)
    assert [answer.tokens for answer in outcome.answers] == [a.record.text for a in outcome.answers]
    assert outcome.busy <= outcome.seconds + 1e-9
    for answer in outcome.answers:
        assert answer.shown == sorted(answer.shown)
        assert answer.shown[0] >= max(0.0, rtt - 2 * jitter) + 0.05
        assert answer.stats.seconds == answer.shown[-1]


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["acespec", "simulate", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0


def test_the_command_fills_a_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.trace"
    trace(records=1).save(path)
    given = ["--trace", str(path), "--edge", "this-machine", "--cloud", "50,1", "--rtt", "20ms,200ms"]
    command(monkeypatch, *given, "--policy", "cloud,chain", "--json")
    report = json.loads(capsys.readouterr().out)
    assert [cell["rtt"] for cell in report["cells"]] == ["20ms", "200ms"]
    for cell in report["cells"]:
        assert [row["policy"] for row in cell["policies"]] == ["cloud", "chain"]
    command(monkeypatch, *given, "--policy", "chain")
    shown = capsys.readouterr().out
    assert shown.count("chain  ") == 2
    assert "RTT 200ms" in shown
