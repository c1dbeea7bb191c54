"""Does the edge's memory stay where it is? Resident size of this process over thousands of verification
rounds.

First the native core alone, with a fake model and scripted verdicts; then the whole edge with a real drafter,
its cloud in a process of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from acespec_edge import EdgeRuntime, _core
from tools.bench import command
from tools.bench.data import load_prompts, pick
from tools.bench.pairs import PAIRS, Pair, bundle_of
from tools.bench.processes import cloud

_LOG = Path("build/logs/memory-cloud.log")
_WARM_UP = 0.1
"""Share of the rounds after which memory should have settled."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the measurement; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.memory", description=__doc__)
    command.add_pair(parser)
    parser.add_argument("--rounds", type=int, default=2000, metavar="N", help="verification rounds (2000)")
    parser.add_argument(
        "--fake-only", action="store_true", help="leave the real drafter out: seconds, no download"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    return command.run(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    rows = [{"engine": "fake", **_watch(_fake_rounds(), options.rounds)}]
    if not options.fake_only:
        pair = PAIRS[options.pair]
        rows.append({"engine": pair.drafter, **_watch(_real_rounds(pair), options.rounds)})
    if options.json:
        print(json.dumps({"rounds": options.rounds, "rows": rows}))
        return 0
    print(f"{'engine':<22}{'rounds':>8}{'settled':>12}{'end':>12}{'growth':>12}   MiB resident")
    for row in rows:
        figures = "".join(f"{row[name] / 1024:>12.1f}" for name in ("settled_kib", "end_kib", "growth_kib"))
        print(f"{row['engine']:<22}{row['rounds']:>8}{figures}")
    return 0


def _watch(rounds: Iterator[int], wanted: int) -> dict[str, Any]:
    """Draws from `rounds` (counts of rounds done since the last) until `wanted` are done, reading the
    memory."""
    done, series = 0, []
    with command.progress(wanted) as advance:
        for count in rounds:
            done += count
            series.append((done, resident_kib()))
            for _ in range(count):
                advance("rounds")
            if done >= wanted:
                break
    settled = next(kib for at, kib in series if at >= _WARM_UP * wanted)
    end = series[-1][1]
    return {"rounds": done, "settled_kib": settled, "end_kib": end, "growth_kib": end - settled}


def resident_kib() -> int:
    """Resident memory of this process in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/status has no VmRSS")


def _fake_rounds() -> Iterator[int]:
    vocabulary, context, chance = 1024, 512, random.Random(3)
    engine = _core.FakeEngine(vocabulary, context + 256, 7)
    drafter = _core.Drafter(engine, _core.DrafterOptions(context=context))
    while True:
        drafter.begin([chance.randrange(vocabulary) for _ in range(64)], _core.SamplingRules())
        while drafter.room > 6:
            while drafter.ready < 5 and not drafter.step(8, True).exhausted:
                pass
            chain = drafter.take_chain(5).tokens
            drafter.step(8, False)
            accepted = chain[: chance.randrange(len(chain) + 1)]
            drafter.apply_verdict([*accepted, chance.randrange(vocabulary)])
            yield 1


def _real_rounds(pair: Pair) -> Iterator[int]:
    sets = load_prompts()
    prompts = pick(sets, sum(map(len, sets.values())))
    plain = Pair(pair.name, pair.drafter, pair.target)
    bundle = bundle_of(pair)
    with cloud(plain, _LOG) as address, EdgeRuntime(bundle, f"ws://{address}/v1/spec") as edge:
        for number, prompt in enumerate(itertools.cycle(prompts)):
            temperature = float(number % 2)
            yield edge.generate(
                prompt.text, max_tokens=256, temperature=temperature, seed=number
            ).stats.rounds


if __name__ == "__main__":
    sys.exit(main())
