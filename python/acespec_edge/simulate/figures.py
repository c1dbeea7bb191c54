"""What a simulated run comes to, in the figures that people compare."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from acespec_edge.simulate.runner import Outcome


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one policy in one setting. ``tokens_per_second``: all tokens of a client by all seconds of its
    requests, first tokens included. Bytes are payloads. ``hit_rate`` and ``accepted`` are means over
    verdicts and rounds. ``cloud_busy``: share of the time that the target's worker had work.
    """

    policy: str
    tokens: int
    tokens_per_second: float
    speedup: float
    ttft_ms: float
    accepted: float
    hit_rate: float
    bytes_up: float
    bytes_down: float
    max_draft_bytes: int
    edge_forwards: float
    cloud_forwards: float
    cloud_nodes: float
    cloud_busy: float


def figures(policy: str, outcome: Outcome, cloud_alone: float | None = None) -> Figures:
    """``cloud_alone``: tokens per second that ``speedup`` compares with; None: this run is it. Bytes,
    forwards and nodes are by token."""
    answers = outcome.answers
    tokens = sum(len(answer.tokens) for answer in answers)
    stats = [answer.stats for answer in answers]
    rate = tokens / sum(one.seconds for one in stats)
    rounds = sum(one.rounds for one in stats)
    return Figures(
        policy=policy,
        tokens=tokens,
        tokens_per_second=rate,
        speedup=rate / (cloud_alone or rate),
        ttft_ms=statistics.median(one.ttft_ms for one in stats),
        accepted=sum(one.accepted_mean * one.rounds for one in stats) / max(1, rounds),
        hit_rate=sum(one.hit_rate * one.rounds for one in stats) / max(1, rounds),
        bytes_up=sum(one.bytes_up for one in stats) / tokens,
        bytes_down=sum(one.bytes_down for one in stats) / tokens,
        max_draft_bytes=max(one.max_draft_bytes for one in stats),
        edge_forwards=sum(one.forwards for one in stats) / tokens,
        cloud_forwards=outcome.forwards / tokens,
        cloud_nodes=outcome.verified_nodes / tokens,
        cloud_busy=outcome.busy / outcome.seconds,
    )
