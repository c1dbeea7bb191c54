"""How much of given answers does lookup alone draft? By file of JSON lines with `prompt` and `reference`.

No model runs: the reference is taken for the target's text. Every round drafts a chain, commits what of it
the reference has, and one token more.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.drafting import Drafter, lookup_drafter
from tools.bench import command


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the measurement; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.lookup", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON lines")
    parser.add_argument("--bundle", type=Path, required=True, help="whose tokenizer is used")
    parser.add_argument("--draft-length", type=int, default=8, metavar="K", help="tokens of a chain (8)")
    parser.add_argument("--context", type=int, default=16384, help="tokens of the longest text (16384)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    return command.run(lambda: _measure(options))


def drafted(drafter: Drafter, prompt: list[int], answer: list[int], length: int) -> tuple[int, int, int]:
    """Rounds, tokens drafted and tokens accepted until `answer` is written."""
    drafter.begin(prompt, _core.SamplingRules(), (), False)
    at = rounds = sent = accepted = 0
    while at < len(answer):
        chain = drafter.take_chain(min(length, len(answer) - at - 1)).tokens
        taken = 0
        while taken < len(chain) and chain[taken] == answer[at + taken]:
            taken += 1
        drafter.apply_verdict(answer[at : at + taken + 1])
        at, rounds, sent, accepted = at + taken + 1, rounds + 1, sent + len(chain), accepted + taken
    return rounds, sent, accepted


def _measure(options: argparse.Namespace) -> int:
    bundle = Bundle.load(options.bundle)
    table = bundle.vocabulary_table
    drafter = lookup_drafter(bundle.vocabulary, context=options.context)
    rows: list[dict[str, Any]] = []
    for file in options.files:
        texts = rounds = sent = accepted = 0
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            answer = row.get("reference")
            if not isinstance(answer, str):
                continue
            ids = table.encode(row["prompt"], add_special=True), table.encode(answer, add_special=False)
            if not all(ids) or sum(map(len, ids)) >= options.context:
                continue
            counts = drafted(drafter, *ids, options.draft_length)
            texts, rounds = texts + 1, rounds + counts[0]
            sent, accepted = sent + counts[1], accepted + counts[2]
        rows.append({
            "file": file.stem,
            "texts": texts,
            "tokens": rounds + accepted,
            "tokens_per_round": round((rounds + accepted) / max(rounds, 1), 3),
            "sent_per_round": round(sent / max(rounds, 1), 3),
            "accepted_of_sent": round(accepted / max(sent, 1), 4),
        })  # fmt: skip
    if options.json:
        print(json.dumps({"draft_length": options.draft_length, "rows": rows}))
        return 0
    print(f"{'file':<24}{'texts':>6}{'tokens':>8}{'tokens/round':>14}{'sent/round':>12}{'accepted':>10}")
    for row in rows:
        print(
            f"{row['file']:<24}{row['texts']:>6}{row['tokens']:>8}{row['tokens_per_round']:>14.2f}"
            f"{row['sent_per_round']:>12.2f}{row['accepted_of_sent']:>10.3f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
