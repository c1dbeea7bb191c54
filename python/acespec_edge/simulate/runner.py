"""Runs a trace's prompts through the real edge code, on a virtual clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Final, Protocol, cast

from acespec_edge import _core
from acespec_edge.channel import Channel
from acespec_edge.control import Controller
from acespec_edge.drafting import Drafter
from acespec_edge.errors import UsageError
from acespec_edge.modes import Commit, Run, target_alone
from acespec_edge.policy import POLICIES, Policy, at_power, named_policy
from acespec_edge.request import Request
from acespec_edge.session import EdgeSession
from acespec_edge.simulate.clock import SimulationError, World
from acespec_edge.simulate.link import Network, Peer, VirtualLink
from acespec_edge.simulate.profiles import CloudProfile, EdgeProfile
from acespec_edge.simulate.timed_drafter import TimedDrafter
from acespec_edge.simulate.trace import Record, Trace
from acespec_edge.speculation import speculate
from acespec_edge.stats import Meter, Stats
from acespec_edge.vocabulary import Vocabulary

FINGERPRINT: Final = bytes(32)
"""Of the tokenizer: a trace has none, and both ends replay the same one."""

MAX_NODES: Final = 256
"""Nodes that the simulated cloud verifies at once."""

CLOUD: Final = "cloud"
"""The policy that everything is compared with: the target alone."""

_WIDTH: Final = 16
"""Most nodes in one forward, as a runtime has it by default."""

_TIMEOUT: Final = 1e6
"""Virtual seconds of silence; no link is lost here."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is simulated. ``clients`` share the cloud; each runs every prompt of the trace, ``requests`` of
    them at most, starting at another one. ``power``: of the edges, as of policy.at_power()."""

    trace: Trace
    edge: EdgeProfile
    cloud: CloudProfile
    network: Network
    policy: str | Policy
    clients: int = 1
    requests: int | None = None
    power: str = "full"


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's outcome. ``shown``: virtual seconds at which each token came, from the request on."""

    client: int
    record: Record
    tokens: list[int]
    shown: list[float]
    stats: Stats


@dataclass(frozen=True, slots=True)
class Outcome:
    """All answers in order of their ends. ``seconds``: until the last; the rest is the cloud's."""

    answers: Sequence[Answer]
    seconds: float
    busy: float
    forwards: int
    verified_nodes: int


class Cloud(Protocol):
    """The simulated cloud; ``busy`` are seconds of its worker."""

    busy: float
    forwards: int
    verified_nodes: int

    def connect(self, send: Callable[[bytes], None]) -> Peer: ...


CloudMaker = Callable[[World, Trace, CloudProfile], Cloud]


def simulate(setting: Setting, make_cloud: CloudMaker | None = None) -> Outcome:
    """Runs the setting to its end. The same setting gives the same outcome, on every machine.

    ``make_cloud``: the cloud's half; by default the one that is installed. Raises UsageError for an
    unknown policy or power, SimulationError when an answer is not the recorded text.
    """
    known = policies()
    if isinstance(setting.policy, str) and setting.policy not in known:
        raise UsageError(f"policy is {setting.policy!r}: it must be one of {', '.join(known)}")
    if setting.clients < 1:
        raise UsageError(f"clients is {setting.clients}: give 1 or more")
    world = World()
    cloud = (make_cloud or installed_cloud())(world, setting.trace, setting.cloud)
    answers: list[Answer] = []
    for number in range(setting.clients):
        client = _Client(number, setting, world, cloud, answers.append)
        world.spawn(client.run)
    world.run()
    return Outcome(answers, world(), cloud.busy, cloud.forwards, cloud.verified_nodes)


def policies() -> list[str]:
    """What can be simulated, the cloud alone first."""
    return [CLOUD, *POLICIES]


class _Client:
    """One edge: its link, its drafter, and its prompts one after the other."""

    def __init__(
        self, number: int, setting: Setting, world: World, cloud: Cloud, done: Callable[[Answer], None]
    ) -> None:
        self._number = number
        self._setting = setting
        self._world = world
        self._cloud = cloud
        self._done = done
        self._cancelled = threading.Event()
        # The target alone follows no policy; what it is measured by is one's as well as another's.
        policy = named_policy("auto" if setting.policy == CLOUD else setting.policy)
        self._control = Controller(at_power(policy, setting.power), width=_WIDTH)

    def run(self) -> None:
        setting, trace = self._setting, self._setting.trace
        link = VirtualLink(self._world, setting.network, self._cloud.connect, self._number)
        session = EdgeSession(tokenizer=FINGERPRINT, vocabulary=trace.vocabulary, drafter=trace.drafter)
        channel = Channel(link, session, _TIMEOUT, self._world)
        channel.greet(self._cancelled)
        drafter = None
        if setting.policy != CLOUD:
            drafter = TimedDrafter(self._world, setting.edge, trace)
        records = trace.records
        count = len(records) if setting.requests is None else min(setting.requests, len(records))
        for turn in range(count):
            record = records[(self._number + turn) % len(records)]
            channel.settle(self._cancelled)
            self._done(self._answer(record, channel, drafter))
        channel.close("done")

    def _answer(self, record: Record, channel: Channel, drafter: TimedDrafter | None) -> Answer:
        began = self._world()
        meter = Meter(seed=record.seed, started=began)
        tokens: list[int] = []
        shown: list[float] = []
        for commit in self._commits(record, meter, channel, drafter):
            now = self._world()
            tokens += commit.tokens
            shown += [now - began] * len(commit.tokens)
            meter.shown(len(commit.tokens), now)
        if tokens != record.text:
            raise SimulationError(
                f"the answer to {record.id} is not what was recorded: {len(tokens)} tokens, "
                f"{len(record.text)} recorded"
            )
        return Answer(self._number, record, tokens, shown, meter.summary(self._world()))

    def _commits(
        self, record: Record, meter: Meter, channel: Channel, drafter: TimedDrafter | None
    ) -> Iterator[Commit]:
        request = Request(
            prompt=record.prompt,
            rules=_core.SamplingRules(temperature=self._setting.trace.temperature, seed=record.seed),
            max_tokens=len(record.text),
            stop_ids=list(self._setting.trace.stop_ids),
            stops=(),
            mode="auto" if drafter else "cloud",
        )
        # No grammar and no text: nothing asks for the vocabulary.
        run = Run(request, cast(Vocabulary, None), meter, self._cancelled, self._world)
        if drafter is None:
            return target_alone(run, channel, self._control)
        drafter.replay(record)
        return speculate(run, channel, cast(Drafter, drafter), self._control, drafter.context)


def installed_cloud() -> CloudMaker:
    """The cloud's half of the simulator; the cloud package registers it. Raises UsageError without one."""
    for point in entry_points(group="acespec.simulators", name="cloud"):
        maker: CloudMaker = point.load()
        return maker
    raise UsageError("no cloud to simulate is installed: pip install 'acespec-edge[cloud]'")
