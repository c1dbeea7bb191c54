"""How often a quantised drafter says what the unquantised one says."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.errors import UsageError
from acespec_edge.export.architecture import Source
from acespec_edge.export.build import export_bundle
from acespec_edge.ort_library import ort_library

_ROWS: Final = 64
"""Of one forward, and the granule of the ring."""

SAMPLE: Final = '''A train leaves the station at nine and needs two hours to the coast. Another one starts an
hour later and is twice as fast. Which of them is there first, and by how many minutes? The first arrives at
eleven. The second needs one hour, so it arrives at eleven too: neither is first.

def mean(values: list[float]) -> float:
    """The arithmetic mean; ValueError when there are no values."""
    if not values:
        raise ValueError("mean of no values")
    return sum(values) / len(values)

{"name": "get_weather", "arguments": {"city": "Lisbon", "days": 3, "unit": "celsius"}}
The forecast for Lisbon: sunny on Monday, clouds on Tuesday, and light rain on the third day.
'''
"""What is read when nothing else is given: prose, code, and data."""


@dataclass(frozen=True)
class Agreement:
    """`share` of `tokens` places of a text at which both say the same token first."""

    tokens: int
    share: float


def agreement(source: Source, bundle: Bundle) -> Agreement:
    """Compares `bundle` with the float32 weights of its source over SAMPLE. Writes those to a temporary
    folder beside the bundle, four bytes a weight. Raises UsageError when the bundle has no model.
    """
    if not bundle.has_model:
        raise UsageError(f"{bundle.path}: has no model that could agree with anything")
    tokens = bundle.vocabulary_table.encode(SAMPLE, add_special=True)[: bundle.max_positions]
    with tempfile.TemporaryDirectory(prefix=".agreement.", dir=bundle.path.parent) as folder:
        exact = Bundle.load(export_bundle(source, Path(folder) / "fp32", "fp32"))
        wanted = choices(exact, tokens)
    same = choices(bundle, tokens) == wanted
    return Agreement(len(same), float(same.mean()))


def choices(bundle: Bundle, tokens: Sequence[int], graph: Path | None = None) -> NDArray[np.int64]:
    """The likeliest token after each of `tokens`, as the bundle's model (or `graph` in its place) on the CPU
    says: int64 [len(tokens)]."""
    count = len(tokens)
    slots = max(128, -(-count // _ROWS) * _ROWS)
    engine = _core.OrtEngine(
        str(graph or bundle.model_file),
        ort_library(),
        slots=slots,
        vocabulary=bundle.vocabulary,
        max_positions=bundle.max_positions,
    )
    best: list[NDArray[np.int64]] = []
    for start in range(0, count, _ROWS):
        places = np.arange(start, min(start + _ROWS, count))
        visible = -(-(int(places[-1]) + 1) // _ROWS) * _ROWS
        bias = np.where(np.arange(visible) <= places[:, None], 0, -np.inf).astype(np.float32)
        rows = list(range(len(places)))
        ids = places.tolist()
        logits = engine.forward(list(tokens[start : start + _ROWS]), ids, ids, bias, rows)
        best.append(logits[:, : bundle.vocabulary].argmax(axis=1))
    return np.concatenate(best)
