"""Drafter and target by the name of their pair, loaded and joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from filelock import FileLock

from acespec_edge import models
from acespec_edge.bundle import Bundle
from acespec_edge.errors import UsageError
from acespec_edge.export.build import export_bundle
from acespec_edge.export.sources import open_source
from acespec_edge.transport import Connector
from tools.bench.shuffled import Shuffled

_EXPORT_SECONDS = 600.0
"""How long to wait for another process that exports the same bundle."""


@dataclass(frozen=True)
class Pair:
    """`drafter` and `target` are names of the model registry. `verify_ms`: base and per node, the time that a
    verification is padded to where the target stands in for a larger one; (0, 0) leaves it as it is.
    `useless`: the drafter's weights are shuffled."""

    name: str
    drafter: str
    target: str
    verify_ms: tuple[float, float] = (0.0, 0.0)
    quant: str = "int4"
    useless: bool = False


PAIRS = {
    pair.name: pair
    for pair in (
        Pair("smollm2", "smollm2-135m", "smollm2-135m", verify_ms=(150.0, 1.0)),
        Pair("qwen2.5-coder", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"),
    )
}


@dataclass(frozen=True)
class Loaded:
    """A pair in this process. `model` is the target, a causal language model of transformers; `connector`
    opens a session with it over the real protocol."""

    bundle: Bundle
    model: Any
    connector: Connector


def bundle_of(pair: Pair) -> Bundle:
    """The drafter's bundle, exported beside the cached models the first time; of two processes, by one."""
    name = f"{pair.drafter}-{pair.quant}" + ("-shuffled" if pair.useless else "")
    folder = models.cache_folder().parent / "bundles" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(folder.name + ".lock"), timeout=_EXPORT_SECONDS):
        try:
            return Bundle.load(folder)
        except UsageError:  # none yet, or one of another version
            source = open_source(pair.drafter)
            source = Shuffled(source) if pair.useless else source
            return Bundle.load(export_bundle(source, folder, pair.quant))


def load_pair(name: str, *, round_ms: float = 0.0) -> Loaded:
    """Fetches, exports and loads what is not there yet; the target on one thread, in float32.

    `round_ms`: shortest time from a draft to its verdict, in place of a network.
    """
    from cloud_stub.local import connect
    from cloud_stub.verifiers.loading import load_verifier

    pair = PAIRS[name]
    bundle = bundle_of(pair)
    verifier = load_verifier(pair.target, device="cpu", dtype="float32", threads=1)
    return Loaded(bundle, verifier.model, lambda: connect(verifier, emulate_verify_ms=(round_ms, 0.0)))
