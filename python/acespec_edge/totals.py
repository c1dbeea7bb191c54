"""What one runtime has done since it began, and what it expects of its link, cloud and drafter now."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from acespec_edge.control import Controller
from acespec_edge.errors import EngineError, LinkError, PeerError, UsageError
from acespec_edge.request import Mode
from acespec_edge.speculation import MOST_NODES
from acespec_edge.stats import Meter
from acespec_edge.transport import Connector, Link

_Item = TypeVar("_Item")

_REFRESH: Final = 0.2
"""Seconds between two looks at the estimates."""

_OUTCOMES: Final = ((LinkError, "link"), (PeerError, "peer"), (EngineError, "engine"), (UsageError, "usage"))


@dataclass(frozen=True, slots=True)
class Estimates:
    """What the controller reckons with; seconds, bytes a second, nodes and tokens a second."""

    round_trip: float
    round_trip_deviation: float
    goodput_up: float
    goodput_down: float
    verify: float
    """Of no drafted nodes."""
    verify_node: float
    """More, of each node."""
    forward: float
    """Of the drafter, one node wide."""
    chain: int
    """K: tokens of the best chain."""
    budget: int
    """B: nodes grown until the verdict on it comes."""
    rate: float
    """Tokens a second of the run so far."""
    alone: float
    """Tokens a second of the target alone."""


@dataclass(frozen=True, slots=True)
class Done:
    """Sums since the runtime began, the request that runs now included. ``requests``: ended ones, by mode and
    outcome ("ok", or whose fault it was); ``tokens``: shown, by mode; ``choices``: as Stats.chosen.
    """

    requests: dict[tuple[str, str], int]
    tokens: dict[str, int]
    choices: dict[str, int]
    rounds: int
    drafts: int
    drafted_nodes: int
    accepted_nodes: int
    verdicts: int
    """Verdicts after the first of their request."""
    foreseen: int
    """Those of them that led to a node whose continuation was drafted already."""
    forwards: int
    bytes_up: int
    bytes_down: int
    outages: int
    """Connections lost while a request ran."""
    offline_tokens: int
    """Tokens that the drafter chose alone meanwhile."""
    connections: int
    """Connections to the cloud opened: more than one means reconnects."""
    running: bool


_SUMS: Final = (
    *("rounds", "drafts", "drafted_nodes", "accepted_nodes", "verdicts", "foreseen"),
    *("forwards", "bytes_up", "bytes_down", "outages", "offline_tokens"),
)


@dataclass(slots=True)
class _Sums:
    tokens: Counter[str] = field(default_factory=Counter)
    choices: Counter[str] = field(default_factory=Counter)
    numbers: Counter[str] = field(default_factory=Counter)

    def add(self, mode: Mode, meter: Meter) -> None:
        wire = meter.traffic()
        self.tokens[mode] += meter.tokens
        self.choices.update(dict(meter.chosen))
        self.numbers.update(
            rounds=wire.rounds,
            drafts=wire.drafts,
            drafted_nodes=wire.nodes,
            accepted_nodes=wire.accepted,
            verdicts=meter.recoveries,
            foreseen=len(meter.hits),
            forwards=meter.forwards,
            bytes_up=wire.bytes_up,
            bytes_down=wire.bytes_down,
            outages=meter.outages,
            offline_tokens=meter.offline_tokens,
        )

    def copy(self) -> _Sums:
        return _Sums(Counter(self.tokens), Counter(self.choices), Counter(self.numbers))


class Totals:
    """Counts what runs, one request at a time. Written by the thread that runs a request, read from any;
    reading takes microseconds and no lock of the drafting path.
    """

    def __init__(self, control: Controller) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._ended = _Sums()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._connections = 0
        self._current: tuple[Mode, Meter] | None = None
        self._looked = 0.0
        self._estimates: Estimates | None = None

    @contextlib.contextmanager
    def counting(self, mode: Mode, meter: Meter) -> Iterator[None]:
        """Counts the request of ``meter`` while and after the block runs."""
        with self._lock:
            self._current = (mode, meter)
        outcome = "ok"
        try:
            yield
        except BaseException as error:
            outcome = next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "internal")
            raise
        finally:
            self._look()
            with self._lock:
                self._current = None
                self._ended.add(mode, meter)
                self._requests[mode, outcome] += 1

    def watched(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """``items``, with a look at the estimates between them, now and then."""
        for item in items:
            if time.monotonic() >= self._looked + _REFRESH:
                self._look()
            yield item

    def counted(self, connector: Connector) -> Connector:
        """``connector``, whose links are counted as they open."""

        def connect() -> Link:
            link = connector()
            with self._lock:
                self._connections += 1
            return link

        return connect

    @property
    def estimates(self) -> Estimates | None:
        """As of a moment ago, or of the last request; None before the first."""
        return self._estimates

    def read(self) -> Done:
        """The sums now. A request that runs counts as far as its thread has got."""
        with self._lock:
            sums, current = self._ended.copy(), self._current
            requests, connections = dict(self._requests), self._connections
            if current is not None:
                sums.add(*current)
        return Done(
            requests=requests,
            tokens=dict(sums.tokens),
            choices=dict(sums.choices),
            **{name: sums.numbers[name] for name in _SUMS},
            connections=connections,
            running=current is not None,
        )

    def _look(self) -> None:
        """On the thread that uses the controller, which is for one thread."""
        self._looked = time.monotonic()
        control = self._control
        link = control.link
        self._estimates = Estimates(
            round_trip=link.rtt,
            round_trip_deviation=link.deviation,
            goodput_up=link.up_bps / 8,
            goodput_down=link.down_bps / 8,
            verify=control.target.verifying(0),
            verify_node=control.target.per_node,
            forward=control.forward.seconds(1),
            chain=control.chain_length(MOST_NODES),
            budget=control.budget(),
            rate=control.rate,
            alone=control.alone,
        )
