"""What a generation cost and how well the drafting went."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of one request. A round is one Draft that the cloud answered; the first token has none.

    Bytes are payloads of this request's messages. A mean over nothing is 0.
    """

    rounds: int
    """Drafts answered."""
    accepted_mean: float
    """Drafted tokens accepted a round."""
    tokens_per_round: float
    """Tokens committed a round: the accepted ones and the target's own."""
    hit_rate: float
    """Share of the verdicts after the first that led to a node whose continuation was already drafted."""
    recover_us: float
    """Median time to move to that node, microseconds; 0 without a hit."""
    bytes_up: int
    bytes_down: int
    max_draft_bytes: int
    max_verdict_bytes: int
    rtt_ms: float
    """Smoothed round trip without the cloud's queue and verification."""
    verify_ms: float
    """Mean verification time in the cloud, as the cloud reports it."""
    draft_ms: float
    """Mean time from a verdict to the next draft on the wire."""
    forwards: int
    """Forwards of the drafter."""
    reused_tokens: int
    """Prompt tokens the drafter still had from the request before."""
    cloud_reused_tokens: int
    """Prompt tokens the cloud still had from an earlier request."""
    ttft_ms: float
    """From the request to the first token."""
    tokens_per_second: float
    """Pace after the first piece: tokens that came after it by the time they took."""
    seconds: float
    """From the request to the end."""
    seed: int
    """Key of the sampling noise: the same seed gives the same text."""
    nodes_per_round: float
    """Drafted nodes a draft."""
    policy: str
    """What was allowed to be done; empty unless the request speculated."""
    chosen: dict[str, int]
    """How often what was done: "chain" and "tree" drafts, more of the tree "in-flight" before a verdict,
    rounds left to the "cloud" alone."""
    why: str
    """The estimates behind that, in a sentence."""
    outages: int = 0
    """How often the connection was lost."""
    reconnects: int = 0
    """How often another took its place."""
    outage_ms: float = 0.0
    """Time without a connection that was known to be lost, until another took its place."""
    offline_tokens: int = 0
    """Tokens that the drafter chose alone meanwhile."""


@dataclass(slots=True)
class Counters:
    """What one request moved over the wire; bytes are payloads of its messages, times are seconds."""

    rounds: int = 0
    accepted: int = 0
    committed: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    max_draft_bytes: int = 0
    max_verdict_bytes: int = 0
    verdicts: int = 0
    verify: float = 0.0
    rtt: float = 0.0
    drafts: int = 0
    nodes: int = 0
    reused: int = 0

    def sent_draft(self, size: int, nodes: int) -> None:
        """Counts a draft of ``nodes`` nodes and ``size`` bytes."""
        self.drafts += 1
        self.nodes += nodes
        self.bytes_up += size
        self.max_draft_bytes = max(self.max_draft_bytes, size)

    def got_verdict(self, size: int, verify: float) -> None:
        """Counts a verdict of ``size`` bytes, whose verification took ``verify`` seconds."""
        self.bytes_down += size
        self.max_verdict_bytes = max(self.max_verdict_bytes, size)
        self.verdicts += 1
        self.verify += verify

    def add(self, other: Counters) -> None:
        """Counts what ``other`` has counted, too; the round trip is the newest."""
        if not self.verdicts:
            # Of the first opening that was answered: what a later one takes over is more than the prompt.
            self.reused = other.reused
        for name in ("rounds", "accepted", "committed", "bytes_up", "bytes_down", "verdicts", "verify"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.drafts += other.drafts
        self.nodes += other.nodes
        self.max_draft_bytes = max(self.max_draft_bytes, other.max_draft_bytes)
        self.max_verdict_bytes = max(self.max_verdict_bytes, other.max_verdict_bytes)
        self.rtt = other.rtt or self.rtt

    def ended_round(self, accepted: int, committed: int) -> None:
        """Counts a draft that was answered, and its tokens."""
        self.rounds += 1
        self.accepted += accepted
        self.committed += committed


@dataclass(slots=True)
class Meter:
    """Collects figures while a request runs. Times are seconds of one monotonic clock. Written by one thread;
    what another reads never falls."""

    seed: int
    started: float
    parts: tuple[Counters, Counters] = field(default_factory=lambda: (Counters(), Counters()))
    """Of the connections that were lost together, and of the newest: replaced at once, so that nothing is
    counted twice."""
    reused_tokens: int | None = None
    forwards: int = 0
    drafting: list[float] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)
    recoveries: int = 0
    tokens: int = 0
    first_tokens: int = 0
    first_at: float | None = None
    last_at: float | None = None
    policy: str = ""
    chosen: Counter[str] = field(default_factory=Counter)
    why: str = ""
    outages: int = 0
    reconnects: int = 0
    outage: float = 0.0
    offline_tokens: int = 0

    @property
    def wire(self) -> Counters:
        """Of the newest connection."""
        return self.parts[1]

    def opened(self, counters: Counters) -> None:
        """The request was opened, perhaps again; ``counters`` go on counting."""
        self.parts = (self.traffic(), counters)

    def reused(self, tokens: int) -> None:
        """Takes what the drafter still had of the prompt; when a request goes on, of its first opening."""
        if self.reused_tokens is None:
            self.reused_tokens = tokens

    def chose(self, choice: str) -> None:
        """Counts what a draft was, or that none was sent."""
        self.chosen[choice] += 1

    def recovered(self, hit: bool, microseconds: float) -> None:
        """Counts a verdict after the first."""
        self.recoveries += 1
        if hit:
            self.hits.append(microseconds)

    def shown(self, tokens: int, at: float) -> None:
        """Counts a piece that is returned to the caller."""
        if self.first_at is None:
            self.first_at, self.first_tokens = at, tokens
        self.tokens += tokens
        self.last_at = at

    def traffic(self) -> Counters:
        """What all connections of the request moved together."""
        sums = Counters()
        for part in self.parts:
            sums.add(part)
        return sums

    def summary(self, now: float) -> Stats:
        """The figures so far."""
        elapsed = 0.0 if self.first_at is None or self.last_at is None else self.last_at - self.first_at
        wire = self.traffic()
        return Stats(
            rounds=wire.rounds,
            accepted_mean=_ratio(wire.accepted, wire.rounds),
            tokens_per_round=_ratio(wire.committed, wire.rounds),
            hit_rate=_ratio(len(self.hits), self.recoveries),
            recover_us=statistics.median(self.hits) if self.hits else 0.0,
            bytes_up=wire.bytes_up,
            bytes_down=wire.bytes_down,
            max_draft_bytes=wire.max_draft_bytes,
            max_verdict_bytes=wire.max_verdict_bytes,
            rtt_ms=1e3 * wire.rtt,
            verify_ms=1e3 * _ratio(wire.verify, wire.verdicts),
            draft_ms=1e3 * _ratio(sum(self.drafting), len(self.drafting)),
            forwards=self.forwards,
            reused_tokens=self.reused_tokens or 0,
            cloud_reused_tokens=wire.reused,
            ttft_ms=0.0 if self.first_at is None else 1e3 * (self.first_at - self.started),
            tokens_per_second=_ratio(self.tokens - self.first_tokens, elapsed),
            seconds=now - self.started,
            seed=self.seed,
            nodes_per_round=_ratio(wire.nodes, wire.drafts),
            policy=self.policy,
            chosen=dict(self.chosen),
            why=self.why,
            outages=self.outages,
            reconnects=self.reconnects,
            outage_ms=1e3 * self.outage,
            offline_tokens=self.offline_tokens,
        )


def _ratio(amount: float, per: float) -> float:
    return amount / per if per > 0 else 0.0
