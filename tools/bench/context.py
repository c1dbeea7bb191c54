"""What a block of drafted tokens takes by the length of the context, in processor time of one thread: of a
DLite head in the cloud, which keeps no history, and of a draft model with keys and values. The context is
made of long prompts of agents and meetings (JSON lines with a `prompt`), one after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from acespec_edge import _core
from acespec_edge.draft_heads import resolve
from acespec_edge.errors import UsageError
from tools.bench import command
from tools.bench.data import long_prompts
from tools.bench.pairs import PAIRS, bundle_of

_CHUNK: Final = 256
"""Prompt tokens of one forward."""

_LENGTHS: Final = "128,512,1024,2048,4096,8192"


@dataclass(frozen=True)
class Point:
    """At a context of `tokens` tokens: milliseconds of a block of `block` tokens, medians of several;
    `head_ms` of the head, `model_ms` of the draft model, one token after the other.
    """

    tokens: int
    block: int
    head_ms: float
    model_ms: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints a table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.context", description=__doc__)
    add = parser.add_argument
    command.add_pair(parser)
    add(
        "--data",
        type=Path,
        required=True,
        metavar="DIR",
        help="sweagent_steps, taubench_airline20, qmsum_long5",
    )
    add(
        "--dlite",
        metavar="NAME|DIR",
        help="the head (one of the pair's shape, untrained: it takes as long)",
    )
    add("--lengths", default=_LENGTHS, metavar="N,...", help=f"tokens of context ({_LENGTHS})")
    add("--repeat", type=int, default=5, metavar="N", help="blocks at each length (5)")
    add("--json", type=Path, metavar="OUT", help="also write the figures to this file")
    add("--plot", type=Path, metavar="OUT.png", help="also draw them")
    options = parser.parse_args(arguments)
    return command.run(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    lengths = parse_lengths(options.lengths)
    if options.repeat < 1:
        raise UsageError(f"repeat is {options.repeat}: give 1 or more")
    from cloud_stub.verifiers.loading import load_verifier

    pair = PAIRS[options.pair]
    texts = long_prompts(options.data)
    bundle = bundle_of(pair)
    target = load_verifier(pair.target, device="cpu", dtype="float32", threads=1)
    model = target
    if pair.drafter != pair.target:
        model = load_verifier(pair.drafter, device="cpu", dtype="float32", threads=1)
    for name, verifier in ((pair.target, target), (pair.drafter, model)):
        if lengths[-1] > verifier.max_context:
            raise UsageError(f"lengths has {lengths[-1]}: {name} holds {verifier.max_context:,} tokens")
    ids = context_ids((bundle.vocabulary_table.encode(text) for text in texts), lengths[-1])
    head = _head(options.dlite, pair.target, target)
    with command.progress(len(lengths)) as advance:
        points = measured(head, target, model, ids, lengths, options.repeat, advance)
    print(f"{'context':>8}{'head, ms':>10}{'model, ms':>11}   a block of {head.longest} tokens")
    for point in points:
        print(f"{point.tokens:>8,}{point.head_ms:>10.1f}{point.model_ms:>11.1f}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(point) for point in points]) + "\n", encoding="utf-8")
    if options.plot is not None:
        _draw(points, pair.drafter, options.plot)
    return 0


def parse_lengths(text: str) -> list[int]:
    """Reads `128,512`. Raises UsageError unless they are whole, above 1 and ascend."""
    lengths = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if lengths != sorted({*lengths}) or lengths[0] < 2:
        raise UsageError(f"lengths is {text!r}: ascending numbers from 2 on are right, as in {_LENGTHS}")
    return lengths


def context_ids(texts: Iterator[list[int]], count: int) -> list[int]:
    """The first `count` tokens of the texts, one after the other. Raises UsageError when there are fewer."""
    ids: list[int] = []
    for text in texts:
        ids += text
        if len(ids) >= count:
            return ids[:count]
    raise UsageError(f"lengths has {count}: the prompts have {len(ids)} tokens")


def measured(
    head: Any,
    target: Any,
    model: Any,
    ids: Sequence[int],
    lengths: Sequence[int],
    repeat: int,
    advance: Callable[[str], None] = lambda doing: None,
    clock: Callable[[], float] = time.process_time,
) -> list[Point]:
    """`head`: a Proposer of verifier `target`'s. `model`: a verifier, perhaps the same, that drafts as a
    model with keys and values does, one forward for each token. `clock`: seconds of processor time.
    """
    rules, block = _core.SamplingRules(), head.longest
    above = target.open()
    below = above if model is target else model.open()
    points = []
    try:
        for length in lengths:
            advance(f"{length:,} tokens")
            # What is drafted is kept, so that the last block ends at the length.
            first = max(1, length - 1 - block * (repeat + 1))
            for handle in {id(above): above, id(below): below}.values():
                for start in range(handle.length, first, _CHUNK):
                    handle.prefill(ids[start : min(start + _CHUNK, first)])
            heads, models = [], []
            for turn in range(repeat + 1):  # the first warms up
                tip = ids[below.length]
                began = clock()
                head.propose(above, ids[above.length], above.length + 1, rules, block, 0.0)
                between = clock()
                for _ in range(block):
                    below.verify(tip, [], [])
                    below.keep([])
                if turn:
                    heads.append(between - began)
                    models.append(clock() - between)
            points.append(
                Point(length, block, 1e3 * statistics.median(heads), 1e3 * statistics.median(models))
            )
    finally:
        above.close()
        below.close()
    return points


def _head(source: str | None, name: str, target: Any) -> Any:
    """The head of that name or folder, or an untrained one of the shape that is built in for the target."""
    from cloud_stub.dlite.checkpoint import new_head
    from cloud_stub.dlite.head_runtime import HeadRuntime
    from tools.train_dlite.settings import read_settings

    if source is not None:
        return HeadRuntime.load(resolve(source), target)
    config = read_settings(name, []).model
    ids = None
    if config.draft_vocabulary < target.logits_width:
        import torch

        ids = torch.arange(config.draft_vocabulary)
    head = new_head(config, target, ids).eval()
    target.watch(config.aux_layers)
    return HeadRuntime(head, min(target.vocabulary.size, target.logits_width))


def _draw(points: Sequence[Point], model: str, path: Path) -> None:
    from tools.bench.plot_data import Series
    from tools.bench.plot_figures import lines

    title = f"A block of {points[0].block} drafted tokens; the draft model is {model}"
    drawn = {
        "draft model": [(point.tokens, point.model_ms) for point in points],
        "DLite head": [(point.tokens, point.head_ms) for point in points],
    }
    lines(Series(title, "tokens of context", "ms of one processor", drawn, log_x=True), path)


if __name__ == "__main__":
    sys.exit(main())
