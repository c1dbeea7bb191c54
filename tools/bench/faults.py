"""Does a request survive whatever happens to its link? Random schedules of faults between an edge and a cloud
on this machine, with fake models: every text is compared with the undisturbed one, token for token.

A schedule breaks up to four connections of one request, each after a random number of bytes: resets, ends,
black holes (both ways or one), pauses, outages and restarts. The floor of the detection bound, and with it
all waits of the schedules, is scaled down from the second that holds in use.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, decoders, models

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import AcespecError, LinkError, UsageError
from acespec_edge.resumption import LinkEvent
from acespec_edge.token_bytes import BYTE_OF
from acespec_edge.transport import connect
from cloud_stub.scheduler import Pacing
from cloud_stub.server import CloudServer, Listener
from cloud_stub.service import Service, ServiceOptions
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tools.bench import command
from tools.bench.fault_path import KINDS, SILENT, Fault, FaultPath

_VOCABULARY: Final = 64
_SEED: Final = 5
_CONTEXT: Final = 256
_MOST_FAULTS: Final = 4
_MOST_BYTES: Final = 4000
"""A request of the tool takes about this much, with its handshake."""

_VERIFY_MS: Final = 4.0
_RECONNECT_FOR: Final = 60.0
_START_TIMEOUT: Final = 30.0
_RULES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"temperature": 1.0, "top_p": 0.95},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.7},
    {"temperature": 0.8, "frequency_penalty": 1.0},
)


@dataclass(slots=True)
class Outcome:
    """Of one schedule. ``silent`` and ``told``: seconds from a fault to the runtime's knowing of it, by
    whether the fault is one of which nobody is told; ``opening``: the same of faults that struck before the
    connection stood. ``unfounded``: connections that stood and were given up without a fault."""

    tokens: int = 0
    lost: int = 0
    duplicated: int = 0
    changed: int = 0
    reconnects: int = 0
    outages: int = 0
    unfounded: int = 0
    faults: list[str] = field(default_factory=list)
    silent: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    opening: list[float] = field(default_factory=list)
    failure: str | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the schedules; the status is 1 when a text differs or a request fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.faults", description=__doc__)
    parser.add_argument("--schedules", type=int, default=100, metavar="N", help="how many (100)")
    parser.add_argument("--seed", type=int, default=1, help="of the schedules (1)")
    parser.add_argument("--tokens", type=int, default=48, metavar="N", help="tokens of a request (48)")
    parser.add_argument("--floor", type=float, default=0.2, metavar="S", help="of the detection bound (0.2)")
    parser.add_argument("--workers", type=int, default=16, metavar="N", help="requests at a time (16)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args(arguments)
    return command.run(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    for name, least in (("schedules", 1), ("tokens", 1), ("workers", 1)):
        if getattr(options, name) < least:
            raise UsageError(f"--{name} is {getattr(options, name)}: it must be {least} or more")
    if not 0 < options.floor <= 10:
        raise UsageError(f"--floor is {options.floor}: it must be above 0 and at most 10 seconds")
    began = time.monotonic()
    outcomes: list[Outcome] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        _cloud(bundle := _bundle(Path(folder))) as port,
        ThreadPoolExecutor(options.workers) as pool,
        command.progress(options.schedules) as advance,
    ):
        runs = [
            pool.submit(_run, bundle, port, random.Random(f"{options.seed}:{number}"), options)
            for number in range(options.schedules)
        ]
        for run in as_completed(runs):
            outcomes.append(run.result())
            advance(f"{sum(outcome.reconnects for outcome in outcomes)} reconnects")
    report = _report(outcomes, options, time.monotonic() - began)
    if options.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name:<20}{value}")
    return 1 if report["failed"] or report["lost"] or report["duplicated"] or report["changed"] else 0


def schedule(source: random.Random, floor: float) -> list[Fault]:
    """The faults of the connections of one request, in order."""
    kinds = [kind for kind in KINDS if kind != "none"]
    return [
        Fault(source.choice(kinds), source.randrange(_MOST_BYTES), source.uniform(0.0, 4 * floor))
        for _ in range(source.randint(1, _MOST_FAULTS))
    ]


def _run(bundle: Bundle, port: int, source: random.Random, options: argparse.Namespace) -> Outcome:
    """One request over a path of faults, and what it has of the text that it should have."""
    rules = source.choice(_RULES) | {"seed": source.randrange(1 << 32)}
    prompt = [source.randrange(_VOCABULARY) for _ in range(source.randint(1, 40))]
    faults = schedule(source, options.floor)
    outcome = Outcome(faults=[fault.kind for fault in faults])
    with FaultPath(port, faults) as path:

        def hear(event: LinkEvent) -> None:
            if event.kind != "lost":
                return
            struck, path.struck = path.struck, None
            stood = event.reason.startswith("lost the connection")
            if struck is None:
                outcome.unfounded += stood
                return
            at, kind = struck
            times = outcome.silent if kind in SILENT else outcome.told
            if kind != "pause":
                (times if stood else outcome.opening).append(time.monotonic() - at)

        url = f"ws://127.0.0.1:{path.port}/v1/spec"
        try:
            with EdgeRuntime(
                bundle,
                lambda: connect(url, least_bound=options.floor, timeout=10 * options.floor),
                mode="edge",
                drafter=_drafter(source.choice((0.0, 0.2, 0.5))),
                context=_CONTEXT,
                draft_length=source.choice((None, 0, 2, 5)),
                reconnect_for=_RECONNECT_FOR,
                on_link=hear,
            ) as edge:
                stream = edge.stream(
                    prompt, max_tokens=options.tokens, mode=source.choice(("auto", "cloud")), **rules
                )
                shown = [token for piece in stream for token in piece.token_ids]
                stats = stream.result.stats
                outcome.reconnects, outcome.outages = stats.reconnects, stats.outages
        except AcespecError as error:
            outcome.failure = str(error)
            return outcome
    _compare(shown, _plainly(prompt, options.tokens, rules), outcome)
    return outcome


def _compare(shown: list[int], expected: list[int], outcome: Outcome) -> None:
    outcome.tokens = len(expected)
    outcome.lost = max(0, len(expected) - len(shown))
    outcome.duplicated = max(0, len(shown) - len(expected))
    outcome.changed = sum(one != other for one, other in zip(shown, expected, strict=False))


def _plainly(prompt: list[int], count: int, rules: dict[str, Any]) -> list[int]:
    """What the target writes by itself."""
    asked = _core.SamplingRules(**rules)
    engine = _core.FakeEngine(vocabulary=_VOCABULARY, slots=64, seed=_SEED)
    sampler, shaper = _core.Sampler(_VOCABULARY), _core.LogitShaper(_VOCABULARY, asked, prompt, [])
    sequence = list(prompt)
    for _ in range(count):
        row = shaper.shape(engine.logits(sequence))
        sequence.append(sampler.choose(row, asked, len(sequence)))
        shaper.commit(sequence[-1:])
    return sequence[len(prompt) :]


def _drafter(disagreement: float) -> _core.Drafter:
    engine = _core.FakeEngine(
        vocabulary=_VOCABULARY, slots=2 * _CONTEXT, seed=_SEED, disagreement=disagreement, max_rows=16
    )
    return _core.Drafter(engine, _core.DrafterOptions(context=_CONTEXT, max_nodes=64))


def _bundle(folder: Path) -> Bundle:
    """A tokenizer of as many bytes, and no model."""
    vocabulary = {symbol: token for token, symbol in enumerate(list(BYTE_OF)[:_VOCABULARY])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    sizes: dict[str, Any] = dict.fromkeys(("layers", "heads", "kv_heads"), 1) | dict.fromkeys(
        ("hidden", "head_dim", "kv_width"), 8
    )
    return Bundle(
        path=folder,
        format=1,
        name="faults",
        architecture="llama",
        **sizes,
        vocabulary=_VOCABULARY,
        logits_width=_VOCABULARY,
        max_positions=4096,
        quant="fp32",
        tokenizer_fingerprint="",
        bos_id=None,
        eos_ids=[],
        source="",
        licence="",
        sha256={},
    )


@contextlib.contextmanager
def _cloud(bundle: Bundle) -> Iterator[int]:
    """A server of the fake target; yields its port."""
    engine = _core.FakeEngine(vocabulary=_VOCABULARY, slots=64, seed=_SEED)
    verifier = ScriptedVerifier(engine.logits, bundle.vocabulary_table, max_context=2 * _CONTEXT)
    options = ServiceOptions(pacing=Pacing(base_ms=_VERIFY_MS), max_sessions=4096)
    service = Service(verifier, options)
    ready: queue.SimpleQueue[str] = queue.SimpleQueue()
    server = CloudServer(service, Listener(port=0), on_ready=ready.put)
    thread = threading.Thread(target=server.run, name="cloud", daemon=True)
    thread.start()
    try:
        try:
            ready.get(timeout=_START_TIMEOUT)
        except queue.Empty:
            raise LinkError(f"the cloud did not listen within {_START_TIMEOUT:g} s") from None
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(_START_TIMEOUT)


def _report(outcomes: list[Outcome], options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    return {
        "schedules": len(outcomes),
        "seed": options.seed,
        "seconds": round(seconds, 1),
        "faults": sum(len(outcome.faults) for outcome in outcomes),
        "tokens": sum(outcome.tokens for outcome in outcomes),
        **{
            name: sum(getattr(outcome, name) for outcome in outcomes)
            for name in ("lost", "duplicated", "changed", "outages", "reconnects", "unfounded")
        },
        "failed": len(failures),
        "failures": failures[:5],
        "floor_s": options.floor,
        "silent_s": _summary([time for outcome in outcomes for time in outcome.silent]),
        "told_s": _summary([time for outcome in outcomes for time in outcome.told]),
        "opening_s": _summary([time for outcome in outcomes for time in outcome.opening]),
    }


def _summary(times: list[float]) -> dict[str, float]:
    if not times:
        return {"count": 0}
    ordered = sorted(times)
    return {
        "count": len(ordered),
        "p50": round(statistics.median(ordered), 3),
        "p99": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 3),
        "max": round(ordered[-1], 3),
    }


if __name__ == "__main__":
    sys.exit(main())
