"""How long is one forward of the drafter? Beside llama.cpp on the same weights, where it is installed.

Milliseconds, median and best of the repeats, for 1 to 16 nodes after 496 tokens of context in 512 slots, the
logits of every node taken out. The two take turns within each repeat, so that other work on the machine hits
both. llama.cpp comes with `pip install llama-cpp-python` and runs the file the bundle was exported from.
Before that: start-up, memory, and what a step has beside its forward.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from acespec_edge import _core, models
from acespec_edge.bundle import QUANTS, Bundle
from acespec_edge.errors import UsageError
from acespec_edge.ort_library import ort_library
from tools.bench import command
from tools.bench.engine_figures import figures
from tools.bench.engine_figures import report as in_words
from tools.bench.pairs import PAIRS, bundle_of

NODES = (1, 4, 8, 16)
SLOTS = 512
CONTEXT = SLOTS - max(NODES)
TOKENS = [11 + 7 * place % 1000 for place in range(SLOTS)]  # of the context and the nodes; any will do

Forward = Callable[[int], None]
"""One forward of so many nodes after the context, which it leaves as it was."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the measurement; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.engine", description=__doc__)
    parser.add_argument(
        "--model",
        default="smollm2",
        metavar="NAME|DIR",
        help=f"{', '.join(PAIRS)}, or a bundle's folder (smollm2)",
    )
    parser.add_argument("--quant", choices=QUANTS, default="int4", help="of a model given by name (int4)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of one forward (1)")
    parser.add_argument("--repeats", type=int, default=20, metavar="N", help="forwards of each size (20)")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="time that the process got: for one thread on a machine that does other work too",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    return command.run(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    if options.repeats < 1:
        raise UsageError(f"repeats is {options.repeats}: give 1 or more")
    bundle, file = _find(options.model, options.quant)
    beside = figures(bundle, options.threads)
    forwards = {"acespec": acespec_forward(bundle, options.threads)}
    absence = _why_no_rival(file)
    if not absence:
        from tools.bench.llama import llama_forward

        forwards["llama.cpp"] = llama_forward(str(file), options.threads, TOKENS, CONTEXT)
    report = {
        "model": bundle.name,
        "quant": bundle.quant,
        "threads": options.threads,
        "slots": SLOTS,
        "repeats": options.repeats,
        "nodes": list(NODES),
        "processor_time": options.processor_time,
        "ms": time_in_turns(
            forwards, options.repeats, time.process_time if options.processor_time else time.perf_counter
        ),
        "rival": file.name if file and not absence else None,
        "beside": beside,
    }
    if options.json:
        print(json.dumps(report))
    else:
        _print(report, absence)
    return 0


def _find(model: str, quant: str) -> tuple[Bundle, Path | None]:
    """The bundle, and the GGUF file it was made from if that is here."""
    if model in PAIRS:
        pair = replace(PAIRS[model], quant=quant)
        return bundle_of(pair), models.pull(pair.drafter)
    bundle = Bundle.load(model)
    source = Path(bundle.source)
    return bundle, source if source.suffix == ".gguf" and source.is_file() else None


def _why_no_rival(file: Path | None) -> str:
    if file is None:
        return "the bundle was not made from a GGUF file that is here"
    try:
        import llama_cpp  # noqa: F401
    except ImportError:
        return "llama-cpp-python is not installed"
    return ""


def acespec_forward(bundle: Bundle, threads: int) -> Forward:
    """The bundle on ONNX Runtime, its context filled."""
    engine = _core.OrtEngine(
        str(bundle.model_file), ort_library(), slots=SLOTS, vocabulary=bundle.vocabulary, threads=threads
    )

    def run(first: int, count: int, rows: list[int]) -> None:
        places = list(range(first, first + count))
        bias = np.where(np.arange(SLOTS) <= np.array(places)[:, None], np.float32(0), np.float32(-np.inf))
        engine.forward([TOKENS[place] for place in places], places, places, bias, rows)

    for first in range(0, CONTEXT, engine.max_rows):
        run(first, min(engine.max_rows, CONTEXT - first), [0])
    return lambda nodes: run(CONTEXT, nodes, list(range(nodes)))


def time_in_turns(
    forwards: dict[str, Forward], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, dict[str, list[float]]]:
    """Milliseconds by name, "median" and "best", one for each of NODES."""
    found: dict[str, dict[str, list[float]]] = {name: {"median": [], "best": []} for name in forwards}
    for nodes in NODES:
        times: dict[str, list[float]] = {name: [] for name in forwards}
        for forward in forwards.values():  # buffers of this size are made here
            forward(nodes)
        for _ in range(repeats):
            for name, forward in forwards.items():
                start = clock()
                forward(nodes)
                times[name].append(clock() - start)
        for name, taken in times.items():
            found[name]["median"].append(round(1000 * statistics.median(taken), 2))
            found[name]["best"].append(round(1000 * min(taken), 2))
    return found


def _print(report: dict[str, Any], absence: str) -> None:
    threads = "1 thread" if report["threads"] == 1 else f"{report['threads']} threads"
    clock = "ms of processor time" if report["processor_time"] else "ms"
    print(f"{report['model']} {report['quant']}, {threads}, {SLOTS} slots: {clock} per forward")
    print(f"{'nodes':<20}" + "".join(f"{nodes:>9}" for nodes in NODES))
    for name, kinds in report["ms"].items():
        for kind, times in kinds.items():
            print(f"{name:<12}{kind:<8}" + "".join(f"{taken:>9.1f}" for taken in times))
    print(f"llama.cpp ran {report['rival']}" if report["rival"] else f"no llama.cpp: {absence}")
    print(in_words(report["beside"]))


if __name__ == "__main__":
    sys.exit(main())
