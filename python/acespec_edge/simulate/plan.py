"""Will it pay? Expected figures of a deployment, from its profiles, its network and an acceptance rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from acespec_edge import _core
from acespec_edge.errors import UsageError
from acespec_edge.simulate.link import Network, framed_down, framed_up
from acespec_edge.simulate.profiles import CloudProfile, EdgeProfile

LONGEST: Final = 64
"""Tokens of a chain, at most."""

WIDTH: Final = 8
"""Nodes of one forward while the edge waits."""

_DECAY: Final = 0.7
"""Exponent of the power law by which alternatives miss the target's token, as AceSpec (arXiv:2609.02514)
assumes it."""

_ROUNDS: Final = 8
"""Length and hit rate each depend on the other; they settle in fewer turns than this."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Expectations of one client that has the cloud to itself. ``tokens`` and ``seconds``, as far as nothing
    hides them, are those of one round; ``budget``: nodes that the edge expands while it waits. Bytes are by
    token."""

    acceptance: float
    cloud_rate: float
    cloud_bytes_down: float
    tokens: float
    rate: float
    length: int
    budget: int
    hit_rate: float
    bytes_up: float
    bytes_down: float
    seconds: dict[str, float]

    @property
    def speedup(self) -> float:
        """Over the cloud alone."""
        return self.rate / self.cloud_rate

    @property
    def pays(self) -> bool:
        """Whether speculation beats the cloud alone."""
        return self.speedup > 1.0


def plan(edge: EdgeProfile, cloud: CloudProfile, network: Network, acceptance: float) -> Plan:
    """The best chain for a drafter whose every token is taken with probability ``acceptance``, independently.

    The edge drafts ahead along the chain and its alternatives while it waits, by AceSpec's (arXiv:2609.02514)
    branch allocation; what it did not foresee it drafts while the cloud idles. Raises UsageError for an
    acceptance out of range.
    """
    if not 0.0 <= acceptance <= 1.0:
        raise UsageError(f"acceptance is {acceptance}: a probability from 0 to 1 is right")
    empty, token = _draft_bytes(0), _draft_bytes(LONGEST) - _draft_bytes(0)
    verdict = _verdict_bytes()
    fixed_up, each_up = _seconds(framed_up(empty), network.up), _seconds(token / LONGEST, network.up)
    down = _seconds(framed_down(verdict), network.down)
    away = network.rtt + fixed_up + down
    rounds = [away + each_up * nodes + cloud.seconds(nodes) for nodes in range(LONGEST + 1)]
    one, wide = edge.seconds(1), edge.seconds(WIDTH)

    length, budget, hits = 1, 0, 0.5
    for _ in range(_ROUNDS):
        drafted = [seconds + (1.0 - hits) * one * nodes for nodes, seconds in enumerate(rounds)]
        length = _core.best_length([acceptance], drafted, LONGEST)
        budget = int(rounds[length] / wide) * WIDTH
        hits = _foreseen(acceptance, length, budget)
    hidden = rounds[length]
    late = hits * max(0.0, length * wide - hidden) + (1.0 - hits) * length * one
    tokens = 1.0 + sum(acceptance**depth for depth in range(1, length + 1))
    return Plan(
        acceptance=acceptance,
        cloud_rate=1.0 / max(cloud.seconds(0), down),
        cloud_bytes_down=verdict,
        tokens=tokens,
        rate=tokens / (hidden + late),
        length=length,
        budget=budget,
        hit_rate=hits,
        bytes_up=_draft_bytes(length) / tokens,
        bytes_down=verdict / tokens,
        seconds={
            "the round trip": network.rtt,
            "the bytes on the wire": fixed_up + each_up * length + down,
            "the target's forward": cloud.seconds(length),
            "the drafter": late,
        },
    )


def _foreseen(acceptance: float, length: int, budget: int) -> float:
    """Probability that a verdict leads to a node that was expanded while the edge waited."""
    stops = _core.stop_probabilities([acceptance] * length)
    counts = _core.allocate_nonuniform(stops, [1.0] * len(stops), min(budget, 1 << 12), _DECAY)
    missed = (stop * math.pow(1.0 + count, -_DECAY) for stop, count in zip(stops, counts, strict=True))
    return 1.0 - math.fsum(missed)


def _seconds(size: float, rate: float | None) -> float:
    return 0.0 if rate is None else 8.0 * size / rate


def _draft_bytes(tokens: int) -> int:
    # Ids of three bytes, as most of a large vocabulary have.
    message = _core.Draft(request=1, round=1, base=1000, first_node=1000, tokens=[1 << 16] * tokens)
    return len(_core.encode(message))


def _verdict_bytes() -> int:
    message = _core.Verdict(
        request=1,
        round=1,
        base=1000,
        accepted_node=1000,
        tokens=[1 << 16],
        finish=_core.Finish.none,
        queue_us=1,
        verify_us=1,
    )
    return len(_core.encode(message))
