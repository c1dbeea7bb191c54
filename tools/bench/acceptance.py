"""How often is the drafter right, and how often was the verdict foreseen? By kind of prompt, greedy and
sampled.

Runs of an EdgeRuntime over the real protocol, the cloud in this process; every verdict takes at least
--round-ms, the time the edge has to draft alternatives.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acespec_edge import EdgeRuntime, Stats
from tools.bench import command
from tools.bench.data import Prompt, load_prompts
from tools.bench.pairs import load_pair


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the measurement; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.acceptance", description=__doc__)
    command.add_pair(parser)
    parser.add_argument("--prompts", type=int, default=12, metavar="N", help="prompts of each kind (12)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="published sets instead of our own prompts")
    parser.add_argument(
        "--tokens", type=int, default=64, metavar="N", help="tokens of each answer, at most (64)"
    )
    parser.add_argument(
        "--draft-length", type=int, default=8, metavar="K", help="drafted tokens sent at once (8)"
    )
    parser.add_argument("--round-ms", type=float, default=250.0, help="shortest time to a verdict (250)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    return command.run(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    prompts = {kind: rows[: options.prompts] for kind, rows in load_prompts(options.data).items()}
    settings = [(temperature, kind) for temperature in (0.0, 1.0) for kind in prompts]
    rows = []
    loaded = load_pair(options.pair, round_ms=options.round_ms)
    with (
        EdgeRuntime(loaded.bundle, loaded.connector, draft_length=options.draft_length) as edge,
        command.progress(2 * sum(map(len, prompts.values()))) as advance,
    ):
        for temperature, kind in settings:
            runs = []
            for number, prompt in enumerate(prompts[kind]):
                runs.append(_run(edge, prompt, options.tokens, temperature, number))
                advance(f"{kind}, T = {temperature:g}")
            rows.append({"kind": kind, "temperature": temperature, **_summary(runs, options.draft_length)})
    report = {
        "pair": options.pair,
        "draft_length": options.draft_length,
        "round_ms": options.round_ms,
        "rows": rows,
    }
    if options.json:
        print(json.dumps(report))
    else:
        _print(report)
    return 0


def _run(edge: EdgeRuntime, prompt: Prompt, tokens: int, temperature: float, seed: int) -> Stats:
    return edge.generate(prompt.text, max_tokens=tokens, temperature=temperature, seed=seed).stats


def _summary(runs: list[Stats], draft_length: int) -> dict[str, Any]:
    """Means over rounds."""
    rounds = sum(run.rounds for run in runs)

    def mean(field: str) -> float:
        return sum(getattr(run, field) * run.rounds for run in runs) / rounds if rounds else 0.0

    accepted = mean("accepted_mean")
    return {
        "prompts": len(runs),
        "rounds": rounds,
        "acceptance": round(acceptance(accepted, draft_length), 4),
        "accepted_mean": round(accepted, 3),
        "tokens_per_round": round(mean("tokens_per_round"), 3),
        "hit_rate": round(mean("hit_rate"), 4),
    }


def acceptance(accepted_mean: float, draft_length: int) -> float:
    """The probability that a drafted token is accepted, from the mean number accepted out of `draft_length`.

    Inverts E[n] = a + a^2 + ... + a^K, each token being accepted with probability a until one is not.
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if sum(middle**power for power in range(1, draft_length + 1)) < accepted_mean:
            low = middle
        else:
            high = middle
    return low


def _print(report: dict[str, Any]) -> None:
    print(f"{report['pair']}, chains of {report['draft_length']}, {report['round_ms']:g} ms to a verdict")
    print(
        f"{'kind':<6}{'T':>4}{'prompts':>9}{'rounds':>8}"
        f"{'acceptance':>12}{'tokens/round':>14}{'hit rate':>10}"
    )
    for row in report["rows"]:
        print(
            f"{row['kind']:<6}{row['temperature']:>4g}{row['prompts']:>9}{row['rounds']:>8}"
            f"{row['acceptance']:>12.3f}{row['tokens_per_round']:>14.2f}{row['hit_rate']:>10.3f}"
        )


if __name__ == "__main__":
    sys.exit(main())
