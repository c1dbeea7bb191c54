"""Every paradigm side by side: the same models, prompts and emulated network, in one run, on the real clock.

The edge keeps to one core and the cloud to another. Greedy answers must be the target's, token for token:
exit status 1 when one is not, or when a paradigm failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from acespec_edge.draft_heads import resolve
from acespec_edge.errors import UsageError
from acespec_edge.prompt import prompt_ids
from tools.bench import command
from tools.bench.data import DEFAULT as OWN_PROMPTS
from tools.bench.data import KINDS, Prompt, load_prompts, pick, read_prompts
from tools.bench.pairs import PAIRS, Pair, bundle_of
from tools.bench.paradigms import report
from tools.bench.paradigms.compare import Comparison
from tools.bench.paradigms.grid import parse_grid
from tools.bench.paradigms.paradigms import (
    DEFAULT,
    PARADIGMS,
    QUICK,
    check_temperature,
    contenders,
    parse_sweep,
)
from tools.bench.paradigms.runs import Question
from tools.bench.paradigms.stage import staged
from tools.bench.paradigms.summary import rows_of

_USUAL = {
    "limit": 6,
    "tokens": 64,
    "grid": ["rtt=100", "bw=1m"],
    "repeat": 3,
    "paradigms": ",".join(DEFAULT),
}
_QUICK = {
    "limit": 2,
    "tokens": 32,
    "grid": ["rtt=20,100", "bw=1m"],
    "repeat": 1,
    "paradigms": ",".join(QUICK),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison; returns the exit status."""
    options = _parser().parse_args(arguments)
    for name, value in (_QUICK if options.quick else _USUAL).items():
        if getattr(options, name) is None and not (name == "paradigms" and options.sweep):
            setattr(options, name, value)
    return command.run(lambda: _compare(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.paradigms", description=__doc__)
    add = parser.add_argument
    command.add_pair(parser)
    add("--prompts", type=Path, metavar="FILE", help="JSON lines of id, kind and prompt (our own)")
    add("--data", type=Path, metavar="DIR", help="published sets instead")
    add("--kind", choices=KINDS, help="prompts of this kind alone (all, in turn)")
    add("--limit", type=int, metavar="N", help=f"prompts ({_USUAL['limit']})")
    add("--tokens", type=int, metavar="N", help=f"tokens of each answer, at most ({_USUAL['tokens']})")
    add(
        "--grid",
        nargs="+",
        metavar="NAME=VALUE,...",
        help="rtt=MS,... bw=RATE,... of the uplink, and of the downlink down=RATE,..., else ten times the "
        "uplink (rtt=100 bw=1m)",
    )
    add(
        "--emulate-verify-ms",
        metavar="BASE,PER_NODE",
        help="shortest forward of the target in ms (the pair's own)",
    )
    add("--paradigms", metavar="NAME,...", help=f"of {', '.join(PARADIGMS)} ({', '.join(DEFAULT)})")
    add(
        "--sweep",
        metavar="NAME=VALUE,...",
        help="instead of paradigms: acespec-measured by budget=NODES,... or temperature=T,...",
    )
    add("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (0)")
    add("--repeat", type=int, metavar="N", help=f"times each answer is had ({_USUAL['repeat']})")
    add(
        "--split-layers",
        type=int,
        metavar="N",
        help="target layers on the edge in split inference (a quarter)",
    )
    add("--dlite", metavar="NAME|DIR", help="the target's DLite head, for the paradigms with one")
    add("--quick", action="store_true", help="a small setting where nothing else is said: minutes")
    add("--json", type=Path, metavar="OUT", help="also write the figures to this file")
    return parser


def _compare(options: argparse.Namespace) -> int:
    for name in ("limit", "tokens", "repeat"):
        if getattr(options, name) < 1:
            raise UsageError(f"{name} is {getattr(options, name)}: give 1 or more")
    check_temperature(options.temperature)
    cells = parse_grid(options.grid)
    sweep = None if options.sweep is None else parse_sweep(options.sweep)
    if sweep is not None and options.paradigms is not None:
        raise UsageError("sweep and paradigms exclude each other: a sweep is of acespec-measured")
    found = contenders((options.paradigms or "").split(","), options.temperature, sweep)
    head = None if options.dlite is None else resolve(options.dlite)
    pair = _pair(options.pair, options.emulate_verify_ms)
    prompts = _prompts(options)
    questions = _questions(pair, prompts, options.tokens)
    document: dict[str, Any] = {
        "format": report.FORMAT,
        "version": report.VERSION,
        "pair": pair.name,
        "verify_ms": list(pair.verify_ms),
        "prompts": [prompt.id for prompt in prompts],
        "tokens": options.tokens,
        "repeat": options.repeat,
        "sweep": None if sweep is None else {"name": sweep.name, "values": list(sweep.values)},
    }
    with command.progress(len(cells) * options.repeat * len(questions) * len(found)) as advance:
        comparison = Comparison(questions, found, options.repeat, advance)
        write = _writer(options.json, document, comparison)
        try:
            with staged(pair, found, options.split_layers, head) as open_cell:
                for cell in cells:
                    with open_cell(cell) as at:
                        comparison.visit(cell, at)
                    write(False)
        except BaseException:
            write(False)
            raise
    print(report.tables(write(True)))
    tallies = [tally for _, visited in comparison.results for tally in visited]
    return 1 if any(tally.wrong or tally.failure is not None for tally in tallies) else 0


def _writer(
    path: Path | None, document: dict[str, Any], comparison: Comparison
) -> Callable[[bool], list[dict[str, Any]]]:
    """Writes the rows there are, and gives them; `complete` when no more will come."""

    def write(complete: bool) -> list[dict[str, Any]]:
        rows = [row for cell, tallies in comparison.results for row in rows_of(cell, tallies)]
        if path is not None:
            report.save(path, {**document, "complete": complete, "rows": rows})
        return rows

    return write


def _pair(name: str, verify_ms: str | None) -> Pair:
    if verify_ms is None:
        return PAIRS[name]
    from cloud_stub.cli import parse_pacing

    pacing = parse_pacing(verify_ms)
    return dataclasses.replace(PAIRS[name], verify_ms=(pacing.base_ms, pacing.per_node_ms))


def _prompts(options: argparse.Namespace) -> list[Prompt]:
    if options.data is not None and options.prompts is not None:
        raise UsageError("prompts and data exclude each other: give one of them")
    kinds = load_prompts(options.data) if options.data else read_prompts(options.prompts or OWN_PROMPTS)
    if options.kind is not None:
        kinds = {options.kind: kinds[options.kind]}
    return pick(kinds, options.limit)


def _questions(pair: Pair, prompts: Sequence[Prompt], tokens: int) -> list[Question]:
    bundle = bundle_of(pair)
    return [
        Question(prompt.id, prompt_ids(bundle, prompt.text), tokens, seed, list(bundle.eos_ids))
        for seed, prompt in enumerate(prompts)
    ]


def _end(number: int, frame: FrameType | None) -> None:
    """Unwinds, so that what was started is stopped and what was measured is written."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main())
