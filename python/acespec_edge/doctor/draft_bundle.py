"""The bundle: whether it is whole, and what a forward of it takes here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.cores import Placement, keep_to
from acespec_edge.doctor.finding import Finding
from acespec_edge.drafting import Drafter
from acespec_edge.errors import AcespecError

_WIDTH: Final = 8
_FORWARDS: Final = 5
_CONTEXT: Final = 256
_CACHE_MB: Final = 32
_LONGEST: Final = 30.0
"""Seconds after which no further forward is begun."""

_SLOW_MS: Final = 150.0
"""Of a forward: as long as a usual round trip, so that hardly anything is drafted while waiting."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Median milliseconds of a forward of one row, and of ``width`` rows."""

    one: float
    wide: float
    width: int = _WIDTH


def probe_bundle(
    folder: Path, placed: Placement, load: Callable[..., Drafter]
) -> tuple[Finding, Bundle | None, Pace | None]:
    """Reads and times the bundle in ``folder``, on the cores that a runtime would take. ``load``:
    drafting.load_drafter, or what stands in for it."""
    try:
        bundle = Bundle.load(folder, verify=True)
        if not bundle.has_model:
            return _without_model(bundle), bundle, None
        drafter = load(
            bundle, context=_CONTEXT, cache_mb=_CACHE_MB, threads=placed.threads, cores=placed.cores
        )
        keep_to(placed)
        pace = measure(drafter)
    except AcespecError as error:
        return Finding("bundle", "bad", str(error), {"path": str(folder)}), None, None
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    tokenizer = bundle.vocabulary_table.fingerprint.hex()
    facts = {
        "path": str(folder),
        "name": bundle.name,
        "quant": bundle.quant,
        "bytes": size,
        "vocabulary": bundle.vocabulary,
        "tokenizer": tokenizer,
        "forward_ms": round(pace.one, 3),
        "wide_forward_ms": round(pace.wide, 3),
        "width": pace.width,
    }
    words = (
        f"{bundle.name} {bundle.quant}, tokenizer {tokenizer[:8]}, "
        f"{pace.one:.0f} ms a token, {pace.wide:.0f} ms for {pace.width}"
    )
    if pace.one > _SLOW_MS:
        advice = "a forward takes as long as a round trip: take a smaller drafter, or more --threads"
        return Finding("bundle", "slow", words, facts, advice), bundle, pace
    return Finding("bundle", "ok", words, facts), bundle, pace


def _without_model(bundle: Bundle) -> Finding:
    tokenizer = bundle.vocabulary_table.fingerprint.hex()
    facts = {"path": str(bundle.path), "name": bundle.name, "tokenizer": tokenizer}
    words = f"{bundle.name} without a model, tokenizer {tokenizer[:8]}: drafts by lookup alone"
    return Finding("bundle", "ok", words, facts, "serve it with --drafter lookup")


def measure(drafter: Drafter, clock: Callable[[], float] = time.monotonic) -> Pace:
    """Times forwards of a drafter behind a short prompt. Raises EngineError when one fails."""
    deadline = clock() + _LONGEST
    drafter.begin([1] * 16, _core.SamplingRules(), [], False)
    while drafter.pending:
        drafter.step(_WIDTH, False)

    def forward(width: int) -> float:
        began = clock()
        drafter.step(width, width == 1)
        return 1e3 * (clock() - began)

    def median(width: int) -> float:
        taken = [forward(width)]
        while len(taken) < _FORWARDS and clock() < deadline:
            taken.append(forward(width))
        return statistics.median(taken)

    return Pace(median(1), median(_WIDTH))
