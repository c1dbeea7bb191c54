"""Is the text of the edge and the cloud together, token for token, the target's own?

Greedy runs of an EdgeRuntime over the real protocol (every message encoded and decoded, the cloud in this
process) against a plain loop over the target. Exit status 1 when any token differs that is not a tie.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acespec_edge import EdgeRuntime
from acespec_edge.prompt import prompt_ids
from tools.bench import command
from tools.bench.data import Prompt, load_prompts, pick
from tools.bench.pairs import Loaded, load_pair
from tools.bench.reference import Difference, first_difference, greedy


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.identity", description=__doc__)
    command.add_pair(parser)
    parser.add_argument(
        "--prompts", type=int, default=36, metavar="N", help="prompts, of all kinds in turn (36)"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="published sets instead of our own prompts")
    parser.add_argument(
        "--tokens", type=int, default=64, metavar="N", help="tokens of each answer, at most (64)"
    )
    parser.add_argument(
        "--draft-lengths",
        type=command.numbers,
        default=(1, 2, 5, 8),
        metavar="N,...",
        help="each is run (1,2,5,8)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args(arguments)
    return command.run(lambda: _compare(options))


def _compare(options: argparse.Namespace) -> int:
    prompts = pick(load_prompts(options.data), options.prompts)
    started = time.monotonic()
    differences = _differences(load_pair(options.pair), prompts, options.tokens, options.draft_lengths)
    report = _report(prompts, differences)
    report |= {
        "pair": options.pair,
        "tokens": options.tokens,
        "draft_lengths": list(options.draft_lengths),
        "seconds": round(time.monotonic() - started, 1),
    }
    if options.json:
        print(json.dumps(report))
    else:
        _print(report)
    return 0 if not report["mismatches"] else 1


Found = list[tuple[Prompt, int, Difference]]


def _differences(loaded: Loaded, prompts: list[Prompt], tokens: int, draft_lengths: Sequence[int]) -> Found:
    bundle = loaded.bundle
    inputs = [prompt_ids(bundle, prompt.text) for prompt in prompts]
    found: Found = []
    with command.progress(len(prompts) * (1 + len(draft_lengths))) as advance:
        expected = []
        for ids in inputs:
            expected.append(greedy(loaded.model, ids, bundle.vocabulary, bundle.eos_ids, tokens))
            advance("target alone")
        for length in draft_lengths:
            with EdgeRuntime(bundle, loaded.connector, draft_length=length) as edge:
                for prompt, ids, reference in zip(prompts, inputs, expected, strict=True):
                    got = edge.generate(ids, max_tokens=tokens).token_ids
                    difference = first_difference(reference, got)
                    if difference is not None:
                        found.append((prompt, length, difference))
                    advance(f"draft length {length}")
    return found


def _report(prompts: list[Prompt], differences: Found) -> dict[str, Any]:
    rows = [
        {"id": prompt.id, "draft_length": length, **dataclasses.asdict(difference), "tie": difference.tie}
        for prompt, length, difference in differences
    ]
    mismatches = [row for row in rows if not row["tie"]]
    ties = [row for row in rows if row["tie"]]
    different = {row["id"] for row in rows}
    return {
        "prompts": len(prompts),
        "identical": len(prompts) - len(different),
        "ties": len(different - {row["id"] for row in mismatches}),
        "mismatches": mismatches,
        "tied": ties,
    }


def _print(report: dict[str, Any]) -> None:
    lengths = ", ".join(map(str, report["draft_lengths"]))
    print(
        f"{report['pair']}: {report['prompts']} prompts of up to {report['tokens']} tokens, "
        f"draft lengths {lengths}: "
        f"{report['identical']} identical, {report['ties']} tied, {len(report['mismatches'])} mismatches"
    )
    for row in report["tied"] + report["mismatches"]:
        kind = "tie" if row["tie"] else "MISMATCH"
        print(
            f"  {kind}: {row['id']}, draft length {row['draft_length']}, token {row['position']}: target "
            f"{row['expected']}, got {row['got']}; the target's two best logits are {row['lead']:.2g} apart"
        )


if __name__ == "__main__":
    sys.exit(main())
