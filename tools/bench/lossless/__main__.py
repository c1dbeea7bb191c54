"""Chi-square of what edge and cloud produce together against exact enumeration of the target alone.

Every message is encoded and decoded, the drafter and the judge are the real ones; models over 16 tokens
stand in for real ones. Seeds are fixed, so the answer is always the same. Exit status 1 when a case fails or
a negative control is not caught.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from tools.bench import command
from tools.bench.lossless.cases import CASES
from tools.bench.lossless.suite import Outcome, run, run_negative


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the suite; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.lossless", description=__doc__)
    parser.add_argument("--draws", type=int, default=20_000, metavar="N", help="of each case (20,000)")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has it")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    return command.run(lambda: _report(options))


def _report(options: argparse.Namespace) -> int:
    cases = [case for case in CASES if options.only in case.name]
    outcomes: list[Outcome] = []
    with command.progress(2 * len(cases)) as advance:
        for case in cases:
            for play in (run, run_negative):
                outcomes.append(play(case, options.draws))
                advance(case.name)
    if options.json:
        print(json.dumps({"cases": [dataclasses.asdict(outcome) for outcome in outcomes]}))
    else:
        for outcome in outcomes:
            kind = "negative control" if outcome.negative else ""
            print(f"{outcome.name:<30}{kind:<18}{outcome.draws:>8,}{outcome.p:>11.2g}  {outcome.verdict}")
    return 1 if any(outcome.verdict == "fail" for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
