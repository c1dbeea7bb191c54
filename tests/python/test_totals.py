"""What a runtime has done in all: counted while it runs, by mode and outcome, never backwards."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import EngineError, LinkError, PeerError, UsageError
from acespec_edge.stats import Counters, Meter
from acespec_edge.totals import Done
from tests.python.edge_kit import PROMPT, runtime
from tests.python.fake_bundle import make_bundle
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import FakeDrafter, mixing

pytestmark = pytest.mark.usefixtures("threads_end")

TARGET = mixing(1, vocabulary=40)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "bundle")


def numbers(done: Done) -> list[int]:
    return [
        *(sum(one.values()) for one in (done.requests, done.tokens, done.choices)),
        *(done.rounds, done.drafts, done.drafted_nodes, done.accepted_nodes, done.verdicts, done.foreseen),
        *(done.forwards, done.bytes_up, done.bytes_down, done.connections, done.outages, done.offline_tokens),
    ]


def test_a_request_counts_while_it_runs_and_only_once(bundle: Bundle) -> None:
    with runtime(bundle, TARGET) as edge:
        assert edge.totals.estimates is None
        seen = [edge.totals.read()]
        stream = edge.stream(PROMPT, max_tokens=60, ignore_eos=True)
        for piece in stream:
            assert piece.token_ids
            seen.append(edge.totals.read())
        seen.append(edge.totals.read())
        for before, after in itertools.pairwise(seen):
            pairs = zip(numbers(before), numbers(after), strict=True)
            assert all(later >= earlier for earlier, later in pairs)
        stats, done = stream.result.stats, seen[-1]
        assert done.tokens == {"auto": 60} and done.requests == {("auto", "ok"): 1} and not done.running
        assert (done.rounds, done.forwards, done.choices) == (stats.rounds, stats.forwards, stats.chosen)
        assert (done.bytes_up, done.bytes_down) == (stats.bytes_up, stats.bytes_down)
        assert done.foreseen / done.verdicts == pytest.approx(stats.hit_rate)
        estimates = edge.totals.estimates
        assert estimates is not None and estimates.round_trip > 0 and estimates.budget >= 1


def test_modes_add_up_and_are_apart(bundle: Bundle) -> None:
    with runtime(bundle, TARGET) as edge:
        for mode, tokens in (("auto", 9), ("cloud", 5), ("edge", 3), ("cloud", 2)):
            edge.generate(PROMPT, max_tokens=tokens, ignore_eos=True, mode=mode)  # type: ignore[arg-type]
        done = edge.totals.read()
    assert done.tokens == {"auto": 9, "cloud": 7, "edge": 3}
    assert done.requests == {("auto", "ok"): 1, ("cloud", "ok"): 2, ("edge", "ok"): 1}
    assert done.connections == 1


def test_a_cancelled_request_is_no_failure(bundle: Bundle) -> None:
    with runtime(bundle, TARGET) as edge:
        stream = edge.stream(PROMPT, max_tokens=2000, ignore_eos=True)
        next(stream)
        stream.close()
        done = edge.totals.read()
    assert done.requests == {("auto", "ok"): 1} and done.tokens["auto"] == len(stream.result.token_ids)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (LinkError("l"), "link"),
        (PeerError("p"), "peer"),
        (EngineError("e"), "engine"),
        (UsageError("u"), "usage"),
        (ZeroDivisionError("z"), "internal"),
    ],
)
def test_failures_are_counted_by_whose_they_are(bundle: Bundle, error: Exception, outcome: str) -> None:
    errors = [error]

    def fail(message: object) -> object:
        if errors:
            raise errors.pop()
        return message

    cloud = FakeCloud(TARGET)
    with runtime(bundle, TARGET, cloud=cloud) as edge:
        cloud._alter = fail
        with pytest.raises(type(error)):
            edge.generate(PROMPT, max_tokens=9)
        assert edge.totals.read().requests == {("auto", outcome): 1}


def test_outages_and_what_was_written_meanwhile_are_counted(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acespec_edge.reconnect._FIRST", 0.0)
    links = iter([FakeCloud(TARGET, vanish_after=4), FakeCloud(TARGET, vanish_after=3)])

    def connector() -> FakeCloud:
        if (link := next(links, None)) is None:
            raise LinkError("cannot reach the cloud")
        return link

    drafter = FakeDrafter(mixing(2, vocabulary=40))
    with EdgeRuntime(bundle, connector, drafter=drafter, draft_length=2, offline_after=0.0) as edge:
        seen = [edge.totals.read()]
        stream = edge.stream(PROMPT, max_tokens=60, ignore_eos=True)
        for _ in stream:
            seen.append(edge.totals.read())
        seen.append(edge.totals.read())
    for before, after in itertools.pairwise(seen):
        assert all(later >= earlier for earlier, later in zip(numbers(before), numbers(after), strict=True))
    stats = stream.result.stats
    assert seen[-1].outages == stats.outages == 2
    assert seen[-1].offline_tokens == stats.offline_tokens > 0


def test_a_request_that_is_opened_again_is_never_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads meanwhile, on another thread: a counter that falls is taken for a new one."""
    meter = Meter(seed=0, started=0.0)
    meter.opened(Counters(bytes_up=100))
    seen: list[int] = []
    reading: list[bool] = []
    add = Counters.add

    def added(counters: Counters, other: Counters) -> None:
        add(counters, other)
        if not reading:
            reading.append(True)
            seen.append(meter.traffic().bytes_up)
            reading.clear()

    monkeypatch.setattr(Counters, "add", added)
    for size in (10, 1):
        meter.opened(Counters(bytes_up=size))
    assert seen and seen == sorted(seen) and seen[-1] <= 110
    assert meter.traffic().bytes_up == 111
