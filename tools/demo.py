"""A drafter and its target over an emulated WAN: the target alone, then AceSpec, and whether the texts are
the same.

`make demo` builds what this needs and runs it. Exit status 1 when the texts differ.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

# The headline comes before the environment exists, so the rest is imported where it is needed.
if TYPE_CHECKING:
    from acespec_edge import Bundle, EdgeRuntime, Result
    from tools.bench.pairs import Pair

_HEADLINES = {
    "smollm2": "Verification is padded: 150 ms + 1 ms a node, as a 32B-class target would take.",
    "qwen2.5-coder": "Real models, a drafter of 0.5B and a target of 1.5B; nothing is padded.",
}
_PROMPTS = ("chat-01", "code-01", "math-01")
_LINK = {"rtt": "100ms", "up": "1mbit", "down": "10mbit"}
_LOGS = Path("build/logs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__)
    parser.add_argument("--pair", choices=sorted(_HEADLINES), default="smollm2", help="drafter and target")
    parser.add_argument(
        "--tokens", type=int, default=64, metavar="N", help="tokens of each answer, at most (64)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, the rest on stderr")
    parser.add_argument("--headline", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--staged", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    screen = Screen(sys.stderr if options.json else sys.stdout)
    if not options.staged:
        screen.line(_HEADLINES[options.pair])
    if options.headline:
        return 0
    signal.signal(signal.SIGTERM, _end)
    from tools.bench.command import run

    return run(lambda: _demo(options, screen))


class Screen:
    """Prints as things happen."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def line(self, text: str = "") -> None:
        """One fact."""
        self.put(text + "\n")

    def put(self, text: str) -> None:
        """Part of a line."""
        print(text, end="", file=self._stream, flush=True)


class Bar:
    """Ten marks that appear as bytes arrive."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._shown = 0

    def __call__(self, done: int, total: int) -> None:
        """Shows `done` of `total` bytes."""
        marks = 10 * done // total
        self._screen.put("#" * (marks - self._shown))
        self._shown = max(self._shown, marks)


def _demo(options: argparse.Namespace, screen: Screen) -> int:
    from acespec_edge import EdgeRuntime
    from tools.bench.data import load_prompts
    from tools.bench.pairs import PAIRS
    from tools.bench.processes import cloud, pin, spare_cores, wan

    pair = PAIRS[options.pair]
    by_id = {prompt.id: prompt.text for prompts in load_prompts().values() for prompt in prompts}
    texts = [by_id[name] for name in _PROMPTS]
    _fetch(pair, screen)
    bundle = _bundle(pair, screen)
    edge_core, cloud_core = spare_cores()
    started = time.monotonic()
    screen.put(f"{'[5/5] cloud':<24}")
    with (
        cloud(pair, _LOGS / "demo-cloud.log", core=cloud_core) as address,
        wan(address, **_LINK, log=_LOGS / "demo-wan.log") as near,
    ):
        seconds = time.monotonic() - started
        screen.line(f"{pair.target} on {address}, WAN 100 ms, 1 Mbit/s up, 10 Mbit/s down   {seconds:.0f} s")
        with pin(edge_core), EdgeRuntime(bundle, f"ws://{near}/v1/spec") as edge:
            alone = _answers(edge, texts, options.tokens, "cloud", screen)
            drafted = _answers(edge, texts, options.tokens, "auto", screen)
    identical = [run.token_ids for run in alone] == [run.token_ids for run in drafted]
    rows = {"cloud only": _row(alone), "AceSpec": _row(drafted)}
    speedup = rows["AceSpec"]["tokens_per_second"] / rows["cloud only"]["tokens_per_second"]
    _table(rows, identical, speedup, screen)
    if options.json:
        report = {"pair": pair.name, "verify_ms": pair.verify_ms, "link": _LINK, "identical": identical}
        print(json.dumps({**report, "speedup": speedup, "rows": rows}))
    return 0 if identical else 1


def _fetch(pair: Pair, screen: Screen) -> None:
    from acespec_edge import models
    from acespec_edge.model_registry import MODELS

    for name in dict.fromkeys((pair.target, pair.drafter)):
        model = MODELS[name]
        screen.put(f"{'[3/5] model':<24}{model.title} ({model.bytes / 1e6:,.0f} MB, {model.licence})  ")
        models.pull(name, progress=Bar(screen))
        screen.line(" 100 %")


def _bundle(pair: Pair, screen: Screen) -> Bundle:
    from tools.bench.pairs import bundle_of

    started = time.monotonic()
    screen.put(f"{'[4/5] edge bundle':<24}")
    bundle = bundle_of(pair)
    facts = f"{bundle.quant}, {bundle.layers} layers, {bundle.vocabulary:,} tokens"
    screen.line(f"{facts}   {time.monotonic() - started:.0f} s")
    return bundle


def _answers(edge: EdgeRuntime, texts: list[str], tokens: int, mode: Any, screen: Screen) -> list[Result]:
    """Streams an answer to each prompt, the way a person would see it."""
    results = []
    for text in texts:
        screen.line(f"\n> {text}   [{'cloud only' if mode == 'cloud' else 'AceSpec'}]")
        stream = edge.stream(text, max_tokens=tokens, mode=mode)
        for piece in stream:
            screen.put(piece.text)
        screen.line()
        results.append(stream.result)
    return results


def _row(runs: list[Result]) -> dict[str, float]:
    """Figures over all answers: rates by total time, means of rounds by round."""
    stats = [run.stats for run in runs]
    tokens = sum(run.usage.completion_tokens for run in runs)
    rounds = sum(stat.rounds for stat in stats)
    return {
        "tokens_per_second": tokens / sum(stat.seconds for stat in stats),
        "first_token_s": sum(stat.ttft_ms for stat in stats) / len(stats) / 1e3,
        "tokens_per_round_trip": sum(stat.tokens_per_round * stat.rounds for stat in stats) / max(1, rounds),
        "hit_rate": sum(stat.hit_rate * stat.rounds for stat in stats) / max(1, rounds),
        "up_bytes_per_token": sum(stat.bytes_up for stat in stats) / tokens,
        "rounds": rounds,
        "tokens": tokens,
    }


def _table(rows: dict[str, dict[str, float]], identical: bool, speedup: float, screen: Screen) -> None:
    heads = ("tokens/s", "first token", "tokens/round trip", "hit rate", "up, bytes/token", "identical")
    screen.line("\n" + " " * 12 + "   ".join(heads))
    for name, row in rows.items():
        drafts = row["rounds"] > 0
        cells = (
            f"{row['tokens_per_second']:.1f}",
            f"{row['first_token_s']:.2f} s",
            f"{row['tokens_per_round_trip']:.1f}" if drafts else "-",
            f"{row['hit_rate']:.2f}" if drafts else "-",
            f"{row['up_bytes_per_token']:.1f}",
            ("yes" if identical else "NO") if drafts else "-",
        )
        line = "   ".join(f"{cell:>{len(head)}}" for head, cell in zip(heads, cells, strict=True))
        screen.line(f"{name:<12}{line}" + (f"   {speedup:.1f}x" if drafts else ""))
    screen.line('Next: README "Use your own model", docs/benchmarks.md')


def _end(number: int, frame: FrameType | None) -> None:
    """Unwinds, so that what was started is stopped."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
