"""The native drafter and the verifier service, both over fake engines that disagree now and then."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from cloud_stub.local import LocalLink
from cloud_stub.scheduler import Pacing
from cloud_stub.server import CloudServer, Listener
from cloud_stub.service import Service, ServiceOptions
from cloud_stub.verifiers.scripted import ScriptedVerifier

VECTORS = Path(__file__).parents[1] / "vectors"
SEED = 5
CONTEXT = 256
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
GREEDY = _core.SamplingRules()
COUPLED = {"temperature": 1.0, "top_p": 0.95, "seed": 42}
TARGET = _core.FakeEngine(vocabulary=64, slots=64, seed=SEED)


def plainly(
    prompt: Sequence[int], count: int, rules: _core.SamplingRules = GREEDY, stop: Sequence[int] = ()
) -> list[int]:
    """What the target writes by itself."""
    sampler = _core.Sampler(64)
    sequence = list(prompt)
    while len(sequence) < len(prompt) + count:
        sequence.append(sampler.choose(TARGET.logits(sequence), rules, len(sequence)))
        if sequence[-1] in stop:
            break
    return sequence[len(prompt) :]


def plainly_by(
    rules: dict[str, Any],
    count: int,
    *,
    prompt: Sequence[int] = PROMPT,
    stop: Sequence[int] = (),
    engine: _core.FakeEngine = TARGET,
) -> list[int]:
    """What the model writes by itself under the rules."""
    asked = _core.SamplingRules(**rules)
    sampler, shaper = _core.Sampler(64), _core.LogitShaper(64, asked, prompt, stop)
    sequence = list(prompt)
    while len(sequence) < len(prompt) + count:
        sequence.append(sampler.choose(shaper.shape(engine.logits(sequence)), asked, len(sequence)))
        shaper.commit(sequence[-1:])
        if sequence[-1] in stop:
            break
    return sequence[len(prompt) :]


def native_drafter(
    *, disagreement: float = 0.2, context: int = CONTEXT, branches: int = 256, max_rows: int = 16
) -> _core.Drafter:
    engine = _core.FakeEngine(
        vocabulary=64, slots=context + branches, seed=SEED, disagreement=disagreement, max_rows=max_rows
    )
    return _core.Drafter(engine, _core.DrafterOptions(context=context, max_nodes=64))


def make_service(
    bundle: Bundle, *, max_context: int = 512, verify_ms: float = 0.0, **options: Any
) -> Service:
    verifier = ScriptedVerifier(TARGET.logits, bundle.vocabulary_table, max_context=max_context)
    return Service(verifier, ServiceOptions(pacing=Pacing(base_ms=verify_ms), **options))


def local_runtime(
    bundle: Bundle,
    drafter: _core.Drafter | None = None,
    *,
    max_context: int = 512,
    verify_ms: float = 0.0,
    **options: Any,
) -> EdgeRuntime:
    options.setdefault("context", CONTEXT)
    return EdgeRuntime(
        bundle,
        lambda: LocalLink(make_service(bundle, max_context=max_context, verify_ms=verify_ms)),
        drafter=drafter or native_drafter(context=options["context"]),
        **options,
    )


@contextlib.contextmanager
def served(bundle: Bundle, **options: Any) -> Iterator[int]:
    """A real server; yields its port."""
    ready = threading.Event()
    service = make_service(bundle, **options)
    server = CloudServer(service, Listener(port=0), on_ready=lambda address: ready.set())
    thread = threading.Thread(target=server.run, name="cloud", daemon=True)
    thread.start()
    try:
        assert ready.wait(10.0)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10.0)


SLOWLY = 20.0
"""Milliseconds of a forward: 400 tokens take seconds, so whatever strikes after a few pieces is in time."""
