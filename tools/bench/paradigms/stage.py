"""The real thing: models, processes and networks for a comparison, taken down again whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from acespec_edge.bundle import Bundle
from acespec_edge.drafting import Drafter, load_drafter, lookup_drafter
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import PeerError, UsageError
from acespec_edge.transport import Connector, connect
from tools.bench.pairs import Pair, bundle_of
from tools.bench.paradigms.colocated import ColocatedRunner
from tools.bench.paradigms.grid import Cell
from tools.bench.paradigms.links import links
from tools.bench.paradigms.padded import PaddedConnector
from tools.bench.paradigms.paradigms import Contender, Drafts
from tools.bench.paradigms.runners import RuntimeRunner, lead, policy_of
from tools.bench.paradigms.runs import Field, Question, Runner
from tools.bench.paradigms.split import SplitRunner
from tools.bench.paradigms.split_model import Front
from tools.bench.processes import pin, server, spare_cores

_LOGS: Final = Path("build/logs")
_CONTEXT: Final = 2048
_CACHE_MB: Final = 32
_LOADING_TIMEOUT: Final = 600.0
_CONNECT_TIMEOUT: Final = 30.0
_METRICS_TIMEOUT: Final = 30.0
_FORWARDS: Final = "acespec_cloud_forwards_total "
_ENDPOINTS: Final = {
    "runtime": "spec",
    "headed": "headed",
    "dssd": "padded",
    "split": "split",
    "colocated": "colocated",
}


Open = Callable[[Cell], contextlib.AbstractContextManager[Field]]
"""Sets up a cell, until the block ends."""


@dataclasses.dataclass(frozen=True)
class _Edge:
    """What this process holds through all cells."""

    bundle: Bundle
    drafters: Mapping[Drafts, Drafter]
    front: Front | None
    layers: int
    core: int | None


@contextlib.contextmanager
def staged(
    pair: Pair, contenders: Sequence[Contender], split_layers: int | None, dlite: Path | None = None
) -> Iterator[Open]:
    """Loads and starts what the contenders need: one cloud for all cells on one core; within a cell the edge
    (this thread) keeps to the other, where there are two. `pair`: its `verify_ms` pads the cloud.
    `split_layers`: None for a quarter of the target's. `dlite`: the target's head. Raises UsageError when a
    contender needs one and there is none.
    """
    headed = [contender.label for contender in contenders if contender.paradigm.how == "headed"]
    if headed and dlite is None:
        raise UsageError(f"dlite is not given, and {headed[0]} needs a head: --dlite DIR would be right")
    edge_core, cloud_core = spare_cores()
    hows = {contender.paradigm.how for contender in contenders}
    bundle = bundle_of(pair)
    with contextlib.ExitStack() as stack:
        addresses = stack.enter_context(_cloud(pair, dlite if headed else None, cloud_core))
        if "colocated" in hows:
            addresses["colocated"] = stack.enter_context(_colocated(pair, addresses["spec"], cloud_core))
        kinds = {contender.paradigm.drafter for contender in contenders}
        drafters = {kind: _drafter(pair, bundle, kind) for kind in kinds}
        front, layers = None, 0
        if "split" in hows:
            front, layers = _front(pair, split_layers)
        edge = _Edge(bundle, drafters, front, layers, edge_core)
        yield lambda cell: _field(cell, contenders, addresses, edge)


def _drafter(pair: Pair, bundle: Bundle, kind: Drafts) -> Drafter:
    if kind == "lookup":
        return lookup_drafter(bundle.vocabulary, context=_CONTEXT)
    if kind == "useless":
        bundle = bundle_of(dataclasses.replace(pair, useless=True))
    return load_drafter(bundle, context=_CONTEXT, cache_mb=_CACHE_MB, threads=1, lookup=kind == "both")


@contextlib.contextmanager
def _field(
    cell: Cell, contenders: Sequence[Contender], addresses: dict[str, str], edge: _Edge
) -> Iterator[Field]:
    far = [addresses[_ENDPOINTS[contender.paradigm.how]] for contender in contenders]
    with contextlib.ExitStack() as stack:
        near = stack.enter_context(links(cell, far, _LOGS / "paradigms-links.log"))
        stack.enter_context(pin(edge.core))
        runners: dict[str, Runner] = {}
        for contender, address in zip(contenders, near, strict=True):
            runner = runners[contender.label] = _runner(contender, address, edge)
            stack.callback(runner.close)
        spec = addresses["spec"]
        counting = [addresses[name] for name in ("spec", "headed") if name in addresses]
        yield Field(
            runners,
            functools.partial(_lead, edge.bundle, spec),
            lambda: sum(_forwards(address) for address in counting),
        )


def _runner(contender: Contender, address: str, edge: _Edge) -> Runner:
    paradigm = contender.paradigm
    if paradigm.how == "colocated":
        return ColocatedRunner(address)
    if paradigm.how == "split":
        assert edge.front is not None
        return SplitRunner(edge.front, edge.layers, edge.bundle.vocabulary_table.size, address)
    sampling = paradigm.sampling(contender.temperature)
    url = f"ws://{address}/v1/spec"
    if paradigm.mode == "cloud":
        return RuntimeRunner(EdgeRuntime(edge.bundle, url, mode="cloud"), sampling, None)
    drafter = edge.drafters[paradigm.drafter]
    padded: PaddedConnector | None = None
    connector: Connector = lambda: connect(url, timeout=_CONNECT_TIMEOUT)  # noqa: E731
    if paradigm.how == "dssd":
        connector = padded = PaddedConnector(connector)
    runtime = EdgeRuntime(
        edge.bundle,
        connector,
        mode=paradigm.mode,
        policy=policy_of(contender),
        drafter=drafter,
        context=_CONTEXT,
    )
    return RuntimeRunner(
        runtime, sampling, drafter, (lambda: 0) if padded is None else (lambda: padded.padding)
    )


def _lead(bundle: Bundle, spec: str, question: Question, position: int) -> float:
    with EdgeRuntime(bundle, f"ws://{spec}/v1/spec", mode="cloud") as direct:
        return lead(direct, question, position)


@contextlib.contextmanager
def _cloud(pair: Pair, dlite: Path | None, core: int | None) -> Iterator[dict[str, str]]:
    padding = ",".join(f"{value:g}" for value in pair.verify_ms)
    program = [sys.executable, "-m", "tools.bench.paradigms.cloud", "--model", pair.target]
    program += ["--emulate-verify-ms", padding]
    if dlite is not None:
        program += ["--dlite", str(dlite.resolve())]
    log = _LOGS / "paradigms-cloud.log"
    with server(program, r"^ready (.*)", log, timeout=_LOADING_TIMEOUT, core=core) as found:
        yield dict(json.loads(found))


def _colocated(pair: Pair, spec: str, core: int | None) -> contextlib.AbstractContextManager[str]:
    program = [sys.executable, "-m", "tools.bench.paradigms.colocated", "--pair", pair.name]
    program += ["--cloud", f"ws://{spec}/v1/spec"]
    log = _LOGS / "paradigms-colocated.log"
    return server(program, r"^ready (\S+)", log, timeout=_LOADING_TIMEOUT, core=core)


def _front(pair: Pair, layers: int | None) -> tuple[Front, int]:
    """The first layers alone: the rest of the target is let go again."""
    from cloud_stub.verifiers.loading import load_verifier

    model = load_verifier(pair.target, device="cpu", dtype="float32", threads=1).model
    count = max(1, len(model.model.layers) // 4) if layers is None else layers
    return Front(model, count), count


def _forwards(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=_METRICS_TIMEOUT) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(_FORWARDS):
                return int(float(line.removeprefix(_FORWARDS)))
    raise PeerError(f"the cloud at {address} does not count its forwards")
