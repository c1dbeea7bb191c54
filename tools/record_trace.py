"""Records a trace for the simulator: the target's answers, and the drafter's likeliest tokens along them.

The target decodes by itself, greedily or with the coupled noise of a seed; the drafter then reads every
answer once and is asked, before each token, what it would have said. Both are timed on the way.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.errors import UsageError
from acespec_edge.ort_library import ort_library
from acespec_edge.prompt import prompt_ids
from acespec_edge.simulate.trace import Ids, Record, Scores, Timing, Trace, descending
from cloud_stub.verifiers.base import Rows, Verifier
from cloud_stub.verifiers.loading import load_verifier
from tools.bench import command
from tools.bench.data import load_prompts
from tools.bench.pairs import PAIRS, bundle_of

_GRANULE: Final = 64
_EDGE_WIDTHS: Final = (1, 2, 4, 8, 16, 32, 64)
_CLOUD_NODES: Final = (0, 1, 4, 16)
_REPEATS: Final = 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the recording; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.record_trace", description=__doc__)
    command.add_pair(parser)
    parser.add_argument("--data", type=Path, metavar="DIR", help="published sets instead of our own prompts")
    parser.add_argument("--prompts", type=int, default=6, metavar="N", help="prompts of each kind (6)")
    parser.add_argument("--tokens", type=int, default=96, metavar="N", help="tokens of each answer (96)")
    parser.add_argument("--top", type=int, default=64, metavar="N", help="drafter's tokens kept (64)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (0)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the first prompt's noise (1)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the trace goes")
    options = parser.parse_args(arguments)
    return command.run(lambda: _record(options))


def _record(options: argparse.Namespace) -> int:
    for name, least in (("prompts", 1), ("tokens", 1), ("top", 1), ("seed", 0)):
        if getattr(options, name) < least:
            raise UsageError(f"{name} is {getattr(options, name)}: give {least} or more")
    pair = PAIRS[options.pair]
    bundle = bundle_of(pair)
    rules = _core.SamplingRules(temperature=options.temperature)
    rules.validate()
    prompts = [row for rows in load_prompts(options.data).values() for row in rows[: options.prompts]]
    verifier = load_verifier(pair.target, device="cpu", dtype="float32", threads=1)
    target = Target(verifier, bundle.vocabulary, bundle.eos_ids, options.temperature)
    records = []
    drafter = Drafter(lambda slots: _engine(bundle, slots), bundle.vocabulary, options.top)
    with command.progress(len(prompts)) as advance:
        for number, row in enumerate(prompts):
            prompt = prompt_ids(bundle, row.text)
            text = target.answer(prompt, options.tokens, options.seed + number)
            top, scores = drafter.read(prompt, text)
            records.append(Record(row.id, row.kind, options.seed + number, prompt, text, top, scores))
            advance(row.id)
    trace = Trace(
        pair=options.pair,
        drafter=f"{bundle.name} {bundle.quant}",
        target=pair.target,
        vocabulary=bundle.vocabulary,
        temperature=options.temperature,
        stop_ids=tuple(bundle.eos_ids),
        records=records,
        machine=f"{platform.machine()}, one thread for each model",
        sources=(
            f"drafter: {bundle.source} ({bundle.licence})",
            "prompts: " + ("our own" if options.data is None else "HumanEval, GSM8K, MT-bench"),
        ),
        timing=Timing(drafter.milliseconds(), target.milliseconds(), target.prefill_milliseconds()),
    )
    trace.save(options.out)
    for kind, shares in trace.matches().items():
        found = ", ".join(f"{share:.3f}" for share in shares)
        print(f"{kind}: the token is among the drafter's first 1, 2, 3, 4 in {found}")
    print(f"{options.out}: {len(records)} answers, {sum(len(r.text) for r in records)} tokens")
    return 0


class Target:
    """Decodes one answer after another, as the cloud does for an edge that sends no drafts."""

    def __init__(
        self, verifier: Verifier, vocabulary: int, stop_ids: Sequence[int], temperature: float
    ) -> None:
        self._verifier = verifier
        self._stop_ids = frozenset(stop_ids)
        self._temperature = temperature
        self._sampler = _core.Sampler(vocabulary)
        self._times: dict[int, list[float]] = defaultdict(list)
        self._prefills: list[float] = []

    def answer(self, prompt: Sequence[int], tokens: int, seed: int) -> list[int]:
        """Up to ``tokens`` tokens, to a stop id at most."""
        rules = _core.SamplingRules(temperature=self._temperature, seed=seed)
        handle = self._verifier.open()
        try:
            text: list[int] = []
            began = time.perf_counter()
            rows = handle.prefill(prompt)
            self._prefills.append((time.perf_counter() - began) / len(prompt))
            while True:
                text.append(self._sampler.choose(rows[0], rules, len(prompt) + len(text)))
                if text[-1] in self._stop_ids or len(text) == tokens:
                    return text
                # Now and then with nodes that are thrown away, for their time.
                nodes = _CLOUD_NODES[len(text) // 8 % len(_CLOUD_NODES)] if len(text) % 8 == 0 else 0
                began = time.perf_counter()
                rows = handle.verify(text[-1], text[-1:] * nodes, list(range(-1, nodes - 1)))
                self._times[nodes].append(time.perf_counter() - began)
                handle.keep([])
        finally:
            handle.close()

    def prefill_milliseconds(self) -> float:
        """Of a prompt, by token."""
        return _undisturbed(self._prefills)

    def milliseconds(self) -> dict[int, float]:
        """Of a verification, by its nodes."""
        return {nodes: _undisturbed(taken) for nodes, taken in sorted(self._times.items())}


class Drafter:
    """Reads answers in forwards of many rows, like a prompt."""

    def __init__(self, load: Callable[[int], _core.Engine], vocabulary: int, top: int) -> None:
        """``load``: an engine of so many slots."""
        self._load = load
        self._vocabulary = vocabulary
        self._top = min(top, vocabulary)
        self._engine: _core.Engine | None = None
        self._slots = 0
        self._held = 0

    def read(self, prompt: list[int], text: list[int]) -> tuple[Ids, Scores]:
        """The likeliest ids before each token of ``text``, int32 [N, top], and their log-probabilities,
        float32 [N, top]."""
        tokens = prompt + text[:-1]
        engine = self._engine_for(len(tokens))
        first_asked = len(prompt) - 1
        self._held = len(tokens)
        found: list[tuple[Ids, Scores]] = []
        for first in range(0, len(tokens), engine.max_rows):
            count = min(engine.max_rows, len(tokens) - first)
            asked = [row for row in range(count) if first + row >= first_asked]
            logits = self._forward(engine, tokens[first : first + count], first, asked or [count - 1])
            if asked:
                found.append(self._likeliest(logits))
        top, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return top, descending(scores.astype(np.float16))

    def milliseconds(self) -> dict[int, float]:
        """Of a forward, by its rows, behind what was read last."""
        engine = self._engine_for(self._held)
        times: dict[int, float] = {}
        for width in (width for width in _EDGE_WIDTHS if width <= engine.max_rows):
            taken = []
            for _ in range(1 + _REPEATS):
                began = time.perf_counter()
                self._forward(engine, [1] * width, self._held, list(range(width)))
                taken.append(time.perf_counter() - began)
            times[width] = _undisturbed(taken[1:])
        return times

    def _engine_for(self, tokens: int) -> _core.Engine:
        slots = -(-(tokens + max(_EDGE_WIDTHS)) // _GRANULE) * _GRANULE
        if self._engine is None or slots > self._slots:
            self._engine, self._slots = self._load(slots), slots
        return self._engine

    def _forward(self, engine: _core.Engine, tokens: list[int], first: int, rows: list[int]) -> Rows:
        places = list(range(first, first + len(tokens)))
        sees = np.arange(self._slots) <= np.array(places)[:, None]
        bias = np.where(sees, np.float32(0), np.float32(-np.inf))
        return engine.forward(tokens, places, places, bias, rows)

    def _likeliest(self, logits: Rows) -> tuple[Ids, Scores]:
        logits = logits[:, : self._vocabulary]
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        top = np.argpartition(-log_p, self._top - 1, axis=1)[:, : self._top]
        # Equal ones in order of their ids, as the sampler ranks them.
        top = np.sort(top, axis=1)
        order = np.argsort(-np.take_along_axis(log_p, top, axis=1), axis=1, kind="stable")
        top = np.take_along_axis(top, order, axis=1)
        return top.astype(np.int32), np.take_along_axis(log_p, top, axis=1).astype(np.float32)


def _engine(bundle: Bundle, slots: int) -> _core.Engine:
    return _core.OrtEngine(
        str(bundle.model_file),
        ort_library(),
        slots=slots,
        vocabulary=bundle.vocabulary,
        max_positions=bundle.max_positions,
        name=bundle.name,
    )


def _undisturbed(seconds: list[float]) -> float:
    """Their lower decile in milliseconds: what the machine takes when it does little else."""
    low = statistics.quantiles(seconds, n=10)[0] if len(seconds) > 1 else seconds[0]
    return round(1e3 * max(low, min(seconds)), 3)


if __name__ == "__main__":
    sys.exit(main())
