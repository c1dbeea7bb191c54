"""`acespec plan`: the arithmetic against itself, the advice against the simulator, the words it is put in."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from acespec_edge import _core
from acespec_edge.cli import main
from acespec_edge.errors import LinkError, UsageError
from acespec_edge.simulate.link import Network
from acespec_edge.simulate.plan import plan
from acespec_edge.simulate.probe import round_trip
from acespec_edge.simulate.profiles import CloudProfile, EdgeProfile
from acespec_edge.transport import Received
from tests.python.simulate_kit import trace

EDGE = EdgeProfile("edge", {1: 10.0, 8: 14.0})
SLOW = CloudProfile.affine("slow", base_ms=150.0, per_node_ms=1.0, prefill_ms=1.0)
FAST = CloudProfile.affine("fast", base_ms=10.0, per_node_ms=0.1, prefill_ms=0.1)


def test_nothing_accepted_never_pays_and_all_accepted_does() -> None:
    never = plan(EDGE, SLOW, Network(0.1), 0.0)
    assert not never.pays
    assert never.rate < never.cloud_rate == pytest.approx(1 / 0.15)
    always = plan(EDGE, SLOW, Network(0.1), 1.0)
    assert always.speedup > 3
    assert always.length == 64


def test_a_fast_target_far_away_is_better_left_alone() -> None:
    assert not plan(EDGE, FAST, Network(0.25), 0.7).pays
    assert plan(EDGE, SLOW, Network(0.02), 0.7).pays


def test_chains_grow_with_the_round_trip_and_with_acceptance() -> None:
    by_trip = [plan(EDGE, SLOW, Network(rtt), 0.8).length for rtt in (0.0, 0.1, 0.5, 2.0)]
    by_acceptance = [plan(EDGE, SLOW, Network(0.1), rate).length for rate in (0.3, 0.6, 0.8, 0.95)]
    assert by_trip == sorted(by_trip)
    assert by_acceptance == sorted(by_acceptance)
    assert by_acceptance[0] < by_acceptance[-1]


def test_the_parts_of_a_round_are_what_they_are_called() -> None:
    found = plan(EDGE, SLOW, Network(0.1, up=20e3, down=1e6), 0.8)
    assert found.seconds["the round trip"] == 0.1
    assert found.seconds["the target's forward"] == pytest.approx(0.15 + 0.001 * found.length)
    tokens = [1 << 16] * found.length
    draft = len(_core.encode(_core.Draft(request=1, round=1, base=1000, first_node=1000, tokens=tokens)))
    assert found.bytes_up * (1 - 0.8 ** (found.length + 1)) / 0.2 == pytest.approx(draft)
    assert found.seconds["the bytes on the wire"] > draft * 8 / 20e3
    assert found.rate == pytest.approx(
        (1 - 0.8 ** (found.length + 1)) / 0.2 / sum(found.seconds.values()), rel=0.02
    )


def test_a_thin_downlink_bounds_the_cloud_alone() -> None:
    found = plan(EDGE, FAST, Network(0.02, up=1e6, down=5e3), 0.8)
    assert found.cloud_rate < 20
    assert found.pays


@pytest.mark.parametrize("acceptance", [-0.1, 1.1, float("nan")])
def test_an_acceptance_is_a_probability(acceptance: float) -> None:
    with pytest.raises(UsageError, match="acceptance is"):
        plan(EDGE, SLOW, Network(0.1), acceptance)


def advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0
) -> str:
    monkeypatch.setattr(sys, "argv", ["acespec", "plan", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == status
    captured = capsys.readouterr()
    return captured.err if status else captured.out


def test_sentences_and_json_say_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--edge", "rk3588-0.5b", "--cloud", "150,1", "--rtt", "50ms", "--acceptance", "0.85"]
    found = json.loads(advice(monkeypatch, capsys, *given, "--json"))
    assert found["pays"] is True
    assert found["policy"] == "auto"
    assert found["simulated"] == []
    text = advice(monkeypatch, capsys, *given)
    assert f"It pays: {found['tokens_per_second']:.1f} tokens/s" in text
    assert f"best at {found['draft_length']} tokens" in text
    assert f"bound by {found['bound_by']}" in text


def test_where_it_does_not_pay_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--cloud", "10,1", "--rtt", "300ms", "--acceptance", "0.3"]
    text = advice(monkeypatch, capsys, *given)
    assert "It does not pay" in text
    assert "policy cloud" in text
    assert "the cloud alone streams" in text.splitlines()[-1]
    found = json.loads(advice(monkeypatch, capsys, *given, "--json"))
    assert (found["speedup"], found["bytes_up_per_token"]) == (1.0, 0.0)


def test_with_a_trace_the_best_simulated_policy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.trace"
    trace(records=2, right=0.9).save(path)
    given = ["--trace", str(path), "--edge", "this-machine", "--cloud", "150,1"]
    found = json.loads(advice(monkeypatch, capsys, *given, "--json"))
    rates = {row["policy"]: row["tokens_per_second"] for row in found["simulated"]}
    assert rates[found["policy"]] >= 0.98 * max(rates.values())
    assert found["speedup"] == pytest.approx(found["tokens_per_second"] / rates["cloud"])
    assert found["chain"]["acceptance"] == pytest.approx(0.9, abs=0.1)


def test_contradictions_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--trace", "x", "--acceptance", "0.5"]
    assert "exclude each other" in advice(monkeypatch, capsys, *given, status=2)


class Answering:
    """A link whose peer takes so long to answer."""

    def __init__(self, seconds: float | None) -> None:
        self.bytes_up = self.bytes_down = 0
        self.closed = False
        self._seconds = seconds
        self._sent = 0.0

    def send(self, frame: bytes) -> None:
        import time

        assert isinstance(_core.decode(frame), _core.Hello)
        self._sent = time.monotonic()

    def receive(self, timeout: float) -> Received | None:
        return None if self._seconds is None else Received(b"", self._sent + self._seconds)

    def close(self) -> None:
        self.closed = True


def test_a_probe_takes_the_shortest_of_its_round_trips() -> None:
    links = [Answering(seconds) for seconds in (0.3, 0.1, 0.2)]
    opened = iter(links)
    assert round_trip(lambda: next(opened)) == pytest.approx(0.1, abs=0.05)
    assert all(link.closed for link in links)


def test_a_probe_that_nobody_answers_is_an_error() -> None:
    link = Answering(None)
    with pytest.raises(LinkError, match="did not answer"):
        round_trip(lambda: link)
    assert link.closed
