"""The policies: their names, what an option makes of them, and what they are worth on recorded models.

All that is timed here is in the simulator's virtual time.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.channel import Channel
from acespec_edge.cli import main
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import UsageError
from acespec_edge.policy import POLICIES, Policy, named_policy
from acespec_edge.session import EdgeSession
from acespec_edge.session_events import Committed
from acespec_edge.simulate.link import Network
from acespec_edge.simulate.profiles import CloudProfile, EdgeProfile
from acespec_edge.simulate.runner import CLOUD, Outcome, Setting, policies, simulate
from acespec_edge.simulate.shipped import opened
from acespec_edge.simulate.trace import Trace
from cloud_stub.simulate import VirtualCloud
from tests.python.edge_kit import DRAFTER, PROMPT, TARGET, runtime
from tests.python.fake_bundle import make_bundle
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import FakeDrafter, decode_plainly
from tests.python.simulate_kit import trace as made_up

EDGE = EdgeProfile("edge", {1: 12.0, 8: 20.0, 16: 30.0})
FIXED = ("chain", "tree", "in-flight", "going-on")
CELLS = [(150, 1, 20), (150, 1, 250), (72, 0.7, 100), (72, 0.7, 250), (500, 50, 20), (500, 50, 100)]
"""Milliseconds: base and node of a verification, round trip."""


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "bundle", eos_ids=())


# Names and options.


def test_the_names_are_what_was_announced() -> None:
    assert list(POLICIES) == [
        "auto",
        "chain",
        "tree",
        "in-flight",
        "going-on",
        "hinted",
        "acespec",
        "acespec-single",
        "acespec-uniform",
        "acespec-measured",
        "vanilla",
        "picospec",
        "one-bet",
    ]
    assert all(policy.name == name for name, policy in POLICIES.items())
    assert all(named_policy(name) is policy for name, policy in POLICIES.items())
    own = Policy("mine", nodes=3)
    assert named_policy(own) is own


def test_only_auto_chooses_by_itself() -> None:
    for name, policy in POLICIES.items():
        open_ends = [policy.in_flight, policy.go_on, policy.hint, policy.cloud_only]
        assert (None in open_ends) == (name == "auto")


def test_an_unknown_policy_is_refused_with_the_known_ones(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match="policy is 'fast': it must be one of auto, chain, tree"):
        runtime(bundle, policy="fast")


@pytest.mark.parametrize(("field", "value", "least"), [("length", -1, 0), ("nodes", 0, 1), ("budget", 0, 1)])
def test_a_policy_out_of_range_is_refused(field: str, value: int, least: int) -> None:
    words = f"policy mine: {field} is {value}: it must be {least} or more"
    with pytest.raises(UsageError, match=words):
        Policy("mine", **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("draft_length", [0, 1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_draft_length_makes_chains_of_that_length(bundle: Bundle, policy: str, draft_length: int) -> None:
    cloud = FakeCloud(TARGET)
    with runtime(bundle, cloud=cloud, policy=policy, draft_length=draft_length) as edge:
        result = edge.generate(PROMPT, max_tokens=30)
    assert result.token_ids == decode_plainly(TARGET, PROMPT, 30)
    lengths = {len(draft.tokens) for draft in cloud.drafts}
    assert max(lengths) == draft_length
    assert result.stats.nodes_per_round <= draft_length <= 2 * result.stats.nodes_per_round
    assert not any(draft.free_run for draft in cloud.drafts)
    chains = POLICIES[policy].send == "chain"
    assert result.stats.policy == (policy if chains else "chain")


# The command, and what is told afterwards.


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    class FakeRuntime(EdgeRuntime):
        def __init__(self, folder: Path, address: str | None, **options: object) -> None:
            options["drafter"] = FakeDrafter(DRAFTER)
            super().__init__(bundle, lambda: FakeCloud(TARGET), **options)  # type: ignore[arg-type]

    def generate(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("acespec_edge.edge.EdgeRuntime", FakeRuntime)
        given = ["acespec", "generate", "a", "--raw", "--bundle", str(tmp_path), "--cloud", "ws://fake"]
        monkeypatch.setattr(sys, "argv", [*given, "--max-tokens", "20", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, captured.out, captured.err

    return generate


@pytest.mark.parametrize("policy", ["chain", "vanilla", "acespec-uniform"])
def test_the_command_takes_a_policy_and_says_what_it_did(command: Run, policy: str) -> None:
    code, out, _ = command("--policy", policy, "--json")
    assert code == 0
    stats = json.loads(out)["stats"]
    assert stats["policy"] == policy
    assert set(stats["chosen"]) == {"chain"}
    assert sum(stats["chosen"].values()) == stats["rounds"]
    assert re.fullmatch(
        r"a round trip takes \d+ ms, verifying .* tokens/s, against .* target alone", stats["why"]
    )


def test_the_command_refuses_an_unknown_policy(command: Run) -> None:
    code, out, err = command("--policy", "fastest")
    assert (code, out) == (2, "")
    assert "policy is 'fastest': it must be one of auto, chain" in err


def test_stats_show_the_choice(command: Run) -> None:
    code, _, err = command("--policy", "chain", "--stats")
    assert code == 0
    assert "chain" in err and "a round trip takes" in err


def test_without_speculation_there_is_no_policy(bundle: Bundle) -> None:
    with runtime(bundle, policy="auto") as edge:
        stats = edge.generate(PROMPT, max_tokens=5, mode="cloud").stats
    assert (stats.policy, stats.chosen, stats.why) == ("", {}, "")


# Worth, on recorded models.


@functools.cache
def recorded() -> Trace:
    return opened(None)


def run(
    policy: str | Policy, cell: tuple[float, float, float], trace: Trace | None = None, requests: int = 4
) -> Outcome:
    base, node, rtt = cell
    cloud = CloudProfile.affine("cloud", base_ms=base, per_node_ms=node, prefill_ms=0.5)
    network = Network(rtt / 1e3, 1e6, 1e7)
    setting = Setting(trace or recorded(), EDGE, cloud, network, policy, requests=requests)
    return simulate(setting, VirtualCloud)


def rate(outcome: Outcome) -> float:
    tokens = sum(len(answer.tokens) for answer in outcome.answers)
    return tokens / sum(answer.stats.seconds for answer in outcome.answers)


@functools.cache
def rate_of(policy: str, cell: tuple[float, float, float]) -> float:
    return rate(run(policy, cell))


@pytest.mark.parametrize("policy", policies())
def test_every_policy_writes_the_recorded_text(policy: str) -> None:
    outcome = run(policy, (72, 0.7, 100), requests=3)
    assert [answer.tokens for answer in outcome.answers] == [record.text for record in recorded().records[:3]]
    for answer in outcome.answers:
        stats = answer.stats
        assert stats.policy == ("" if policy == CLOUD else policy)
        assert stats.max_draft_bytes < 512 and stats.max_verdict_bytes < 512


@pytest.mark.native
@pytest.mark.parametrize("cell", CELLS)
def test_auto_is_about_as_fast_as_the_best_fixed_choice(cell: tuple[float, float, float]) -> None:
    auto = rate_of("auto", cell)
    assert auto >= 0.95 * max(rate_of(policy, cell) for policy in FIXED)
    assert auto >= 0.98 * rate_of(CLOUD, cell)


@pytest.mark.native
def test_auto_keeps_drafting_where_it_narrowly_pays() -> None:
    """All twelve prompts: easy ones first, then some on which a dozen rounds seem to say that it does not."""
    cell = (72, 0.7, 250)
    auto, fixed = (rate(run(policy, cell, requests=12)) for policy in ("auto", "in-flight"))
    assert auto >= 0.97 * fixed


def useless(trace: Trace) -> Trace:
    """What the drafter thought, but of other positions."""
    return dataclasses.replace(
        trace,
        records=[
            dataclasses.replace(
                record,
                top=np.roll(record.top, len(record.text) // 2, axis=0),
                scores=np.roll(record.scores, len(record.text) // 2, axis=0),
            )
            for record in trace.records
        ],
    )


@pytest.mark.native
@pytest.mark.parametrize("cell", [(150, 1, 20), (72, 0.7, 250), (30, 0.2, 100)])
def test_a_useless_drafter_costs_next_to_nothing(cell: tuple[float, float, float]) -> None:
    bad = useless(recorded())
    auto, fixed, alone = (rate(run(policy, cell, bad)) for policy in ("auto", "tree", CLOUD))
    assert auto >= 0.97 * alone
    assert fixed < 0.85 * alone, "the drafter is not as bad as this test needs"


@pytest.mark.native
def test_trees_beat_chains_where_nodes_are_cheap_and_not_where_they_are_dear() -> None:
    assert rate_of("tree", (150, 1, 250)) > 1.1 * rate_of("chain", (150, 1, 250))
    assert rate_of("chain", (500, 50, 20)) >= rate_of("tree", (500, 50, 20))


@pytest.mark.native
def test_sending_ahead_pays_on_long_round_trips() -> None:
    for cell in ((150, 1, 250), (72, 0.7, 250), (72, 0.7, 100)):
        assert rate_of("in-flight", cell) > 1.04 * rate_of("tree", cell)


@pytest.mark.native
def test_growing_ahead_pays() -> None:
    """The whole idea: what is drafted while the verdict is under way saves the wait for it."""
    cell = (150, 1, 250)
    assert rate(run("acespec", cell)) > rate(run("vanilla", cell))


@pytest.mark.native
def test_auto_says_what_it_chose() -> None:
    stats = [answer.stats for answer in run("auto", (150, 1, 20)).answers]
    assert any(one.chosen.get("in-flight", 0) > 0 for one in stats)
    assert all(set(one.chosen) <= {"chain", "tree", "in-flight", "cloud"} for one in stats)
    assert all(one.nodes_per_round > 3 for one in stats)
    bad = [answer.stats for answer in run("auto", (72, 0.7, 250), useless(recorded())).answers]
    assert set(bad[-1].chosen) == {"cloud"}


class Sent:
    """The drafts that sessions send: whether they came before a verdict, and their parents."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0
        self.joined = 0
        self.trees = 0
        draft = EdgeSession.draft

        def recorded_draft(
            session: EdgeSession, tokens: list[int], parents: list[int] | None = None, **more: object
        ) -> bytes:
            if tokens and session.owed:
                self.ahead += 1
            first = session.next_node
            given = parents or []
            self.joined += any(0 < parent < first for parent in given)
            self.trees += len(set(given)) < len(given)
            return draft(session, tokens, parents, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(EdgeSession, "draft", recorded_draft)


@pytest.mark.native
@pytest.mark.parametrize(
    ("policy", "ahead", "trees"),
    [
        ("auto", True, True),
        ("in-flight", True, True),
        ("picospec", True, False),
        ("tree", False, True),
        ("chain", False, False),
        ("one-bet", False, True),
    ],
)
def test_deltas_cross_and_hang_below_what_is_in_flight(
    monkeypatch: pytest.MonkeyPatch, policy: str, ahead: bool, trees: bool
) -> None:
    sent = Sent(monkeypatch)
    run(policy, (150, 1, 250), requests=2)
    assert (sent.joined > 5) is ahead
    assert (sent.ahead > 5) is ahead
    assert (sent.trees > 0) is trees


@pytest.mark.native
@pytest.mark.parametrize("policy", ["auto", "in-flight", "tree", "chain", "one-bet", "vanilla"])
@pytest.mark.parametrize("bad", [True, False])
def test_waiting_does_not_spin(monkeypatch: pytest.MonkeyPatch, policy: str, bad: bool) -> None:
    """Looks at the link: one before each forward, some for each verdict, and one every 10 ms."""
    looks = 0
    poll = Channel.poll

    def counting_poll(channel: Channel) -> Committed | None:
        nonlocal looks
        looks += 1
        return poll(channel)

    monkeypatch.setattr(Channel, "poll", counting_poll)
    outcome = run(policy, (500, 1, 250), useless(recorded()) if bad else recorded(), requests=3)
    forwards = sum(answer.stats.forwards for answer in outcome.answers)
    tokens = sum(len(answer.tokens) for answer in outcome.answers)
    assert looks <= forwards + 4 * tokens + outcome.seconds / 0.01 + 50
    assert forwards > tokens / 2


@pytest.mark.native
def test_a_request_after_drafting_did_not_pay_opens_with_the_cloud_alone() -> None:
    """No round trip is lost to asking for that."""
    bad = useless(recorded())
    cell = (72, 0.7, 250)
    auto, alone = run("auto", cell, bad), run(CLOUD, cell, bad)
    for one, other in zip(auto.answers[1:], alone.answers[1:], strict=True):
        assert one.shown == pytest.approx(other.shown, abs=0.02)


def test_a_policy_of_ones_own_may_leave_chains_in_flight_to_the_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = Sent(monkeypatch)
    outcome = run(Policy("mine", send="chain", nodes=8, budget=64), (150, 1, 250), made_up())
    assert sent.ahead > 0
    assert all(answer.stats.nodes_per_round <= 8 for answer in outcome.answers)
    assert all(answer.stats.policy == "mine" for answer in outcome.answers)


def test_a_budget_is_that_of_a_round_even_when_one_follows_another_in_flight() -> None:
    """Had it been spent once and for all, nothing would be left to send ahead."""
    mine = Policy("mine", in_flight=True, go_on=False, cloud_only=False, budget=16)
    limited, free = (run(policy, (150, 1, 250), made_up(right=1.0)) for policy in (mine, "in-flight"))
    for outcome in (limited, free):
        assert all(answer.stats.chosen["in-flight"] > 1 for answer in outcome.answers)
    forwards = [sum(answer.stats.forwards for answer in outcome.answers) for outcome in (limited, free)]
    assert forwards[0] < forwards[1]


def test_a_policy_may_leave_all_to_the_target() -> None:
    cell = (72, 0.7, 100)
    ours, alone = run(Policy("mine", cloud_only=True), cell), run(CLOUD, cell)
    for one, other in zip(ours.answers, alone.answers, strict=True):
        assert one.shown == pytest.approx(other.shown, abs=0.02)
        assert set(one.stats.chosen) == {"cloud"}


def test_a_very_fast_drafter_has_a_bounded_budget() -> None:
    """Alternatives of a round are counted in thousands, not in what 250 ms would hold."""
    cloud = CloudProfile.affine("cloud", base_ms=150, per_node_ms=1, prefill_ms=0.5)
    edge = EdgeProfile("rocket", {1: 1e-3, 16: 2e-3})
    for policy in ("acespec", "acespec-uniform"):
        simulate(Setting(made_up(1), edge, cloud, Network(0.25), policy), VirtualCloud)


@pytest.mark.parametrize("largest", [49_151, 151_935, 2**24 - 1])
def test_the_largest_messages_stay_under_512_bytes(largest: int) -> None:
    from acespec_edge.speculation import MOST_NODES

    numbers = {"request": 65535, "round": 65535, "base": 2**20, "first_node": 2**20}
    tokens = [largest - place for place in range(MOST_NODES)]
    tree = _core.Draft(tokens=tokens, parent_offsets=[255] * MOST_NODES, free_run=True, **numbers)
    chain = _core.Draft(tokens=tokens, q=[65535] * MOST_NODES, resampled=largest, **numbers)
    assert len(_core.encode(tree)) < 512
    assert len(_core.encode(chain)) < 512
