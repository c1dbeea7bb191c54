"""How long from a verdict to the next chain, in the native core? With a fake model, at short and long
contexts.

Recovering moves a pointer and frees the branches that no longer descend, so the time must not grow with the
context.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from acespec_edge import _core
from tools.bench import command

_VOCABULARY = 4096
_BRANCHES = 512
_CHAIN = 4
_LOOK_AROUND = 6
_GRANULE = 64
_WEIGHTS: Final = np.ones(16 << 20, dtype=np.uint8)
"""Read before every verdict: a real model's weights leave no cache warm, whatever the context."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the measurement; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.recovery", description=__doc__)
    parser.add_argument(
        "--contexts", type=command.numbers, default=(128, 2048), metavar="N,...", help="(128,2048)"
    )
    parser.add_argument("--rounds", type=int, default=400, metavar="N", help="verdicts at each context (400)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    return command.run(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    rows = [_at_context(context, options.rounds) for context in options.contexts]
    if options.json:
        print(json.dumps({"rounds": options.rounds, "rows": rows}))
        return 0
    print(f"{'context':>8}{'hit, median':>14}{'99 %':>9}{'miss, median':>15}{'99 %':>9}   microseconds")
    for row in rows:
        print(
            f"{row['context']:>8}{row['hit']['median_us']:>14.1f}{row['hit']['p99_us']:>9.1f}"
            f"{row['miss']['median_us']:>15.1f}{row['miss']['p99_us']:>9.1f}"
        )
    return 0


def _at_context(context: int, rounds: int) -> dict[str, Any]:
    """Alternates foreseen and unforeseen verdicts around `context` committed tokens."""
    room = 16 * (_CHAIN + 1)
    slots = -(-(context + room + _BRANCHES) // _GRANULE) * _GRANULE
    engine = _core.FakeEngine(_VOCABULARY, slots, 7)
    drafter = _core.Drafter(engine, _core.DrafterOptions(context=context + room))
    prompt = [(17 * place + 5) % _VOCABULARY for place in range(context)]
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds):
        if number == 0 or drafter.room <= _CHAIN + 1:
            drafter.begin(prompt, _core.SamplingRules())
        while drafter.ready < _CHAIN and not drafter.step(8, True).exhausted:
            pass
        chain = drafter.take_chain(_CHAIN).tokens
        for _ in range(_LOOK_AROUND):
            drafter.step(8, False)
        token = _last_token(drafter, len(chain), foreseen=number % 2 == 0)
        _WEIGHTS.max()
        recovery = drafter.apply_verdict([*chain, token])
        times[recovery.hit].append(recovery.microseconds)
    return {"context": context, "hit": _summary(times[True]), "miss": _summary(times[False])}


def _last_token(drafter: _core.Drafter, chain: int, *, foreseen: bool) -> int:
    """A continuation of the accepted chain that the drafter has expanded, or one that it has not grown at
    all."""
    snapshot = drafter.snapshot()
    tip = snapshot["committed"] - 1 + chain
    flown = [node["id"] for node in snapshot["nodes"] if node["number"] and node["position"] == tip]
    below = [node for node in snapshot["nodes"] if flown and node["parent"] == flown[-1]]
    expanded = [node["token"] for node in below if node["expanded"]]
    if foreseen and expanded:
        return int(expanded[0])
    grown = {node["token"] for node in below}
    return next(token for token in range(_VOCABULARY) if token not in grown)


def _summary(times: list[float]) -> dict[str, float]:
    if not times:
        return {"count": 0, "median_us": 0.0, "p99_us": 0.0}
    ordered = sorted(times)
    return {
        "count": len(times),
        "median_us": statistics.median(ordered),
        "p99_us": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
    }


if __name__ == "__main__":
    sys.exit(main())
