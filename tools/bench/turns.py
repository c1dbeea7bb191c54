"""How long until the first token of turn n + 1, as a conversation grows?

The same conversation twice over the real protocol, the cloud in this process: once in one session, where both
sides keep what they have read, and once with each turn on its own, where both read everything. Exit status 1
when an answer differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from acespec_edge import EdgeRuntime
from acespec_edge.result import Result
from tools.bench import command
from tools.bench.data import load_prompts, pick
from tools.bench.pairs import load_pair

_PROMPTS_A_TURN: Final = 3
_CONTEXT: Final = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the measurement; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.turns", description=__doc__)
    command.add_pair(parser)
    parser.add_argument("--turns", type=int, default=10, metavar="N", help="turns of the conversation (10)")
    parser.add_argument(
        "--tokens", type=int, default=32, metavar="N", help="tokens of each answer, at most (32)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    return command.run(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    loaded = load_pair(options.pair)
    texts = [prompt.text for prompt in pick(load_prompts(), options.turns * _PROMPTS_A_TURN)]
    messages: list[dict[str, str]] = []
    rows = []
    with (
        EdgeRuntime(loaded.bundle, loaded.connector, context=_CONTEXT) as edge,
        command.progress(options.turns) as advance,
    ):
        for turn in range(options.turns):
            asked = "\n\n".join(texts[turn * _PROMPTS_A_TURN : (turn + 1) * _PROMPTS_A_TURN])
            messages.append({"role": "user", "content": asked})
            kept = edge.generate(messages, max_tokens=options.tokens)
            with EdgeRuntime(loaded.bundle, loaded.connector, context=_CONTEXT) as stranger:
                alone = stranger.generate(messages, max_tokens=options.tokens)
            rows.append(_row(turn + 1, kept, alone))
            messages.append({"role": "assistant", "content": kept.text})
            advance(f"turn {turn + 1}")
    identical = all(row["identical"] for row in rows)
    if options.json:
        print(json.dumps({"pair": options.pair, "tokens": options.tokens, "rows": rows}))
    else:
        _print(rows)
    return 0 if identical else 1


def _row(turn: int, kept: Result, alone: Result) -> dict[str, Any]:
    return {
        "turn": turn,
        "prompt_tokens": kept.usage.prompt_tokens,
        "reused_cloud": kept.stats.cloud_reused_tokens,
        "reused_edge": kept.stats.reused_tokens,
        "ttft_ms": round(kept.stats.ttft_ms, 1),
        "ttft_ms_alone": round(alone.stats.ttft_ms, 1),
        "bytes_up": kept.stats.bytes_up,
        "bytes_up_alone": alone.stats.bytes_up,
        "identical": kept.token_ids == alone.token_ids,
    }


def _print(rows: list[dict[str, Any]]) -> None:
    print(
        f"{'turn':>4}{'prompt':>8}{'kept':>7}{'first token, ms':>17}{'alone':>9}{'bytes up':>10}{'alone':>8}"
    )
    for row in rows:
        print(
            f"{row['turn']:>4}{row['prompt_tokens']:>8}{row['reused_cloud']:>7}{row['ttft_ms']:>17.0f}"
            f"{row['ttft_ms_alone']:>9.0f}{row['bytes_up']:>10}{row['bytes_up_alone']:>8}"
            f"{'' if row['identical'] else '  DIFFERENT'}"
        )


if __name__ == "__main__":
    sys.exit(main())
