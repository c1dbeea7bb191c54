"""Engines to test with, and the caller's side of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from acespec_edge import _core
from acespec_edge.ort_library import ort_library
from tests.vectors import make_tiny_model as tiny

Array = npt.NDArray[np.float32]
VECTORS = Path(tiny.__file__).parent
GRANULE = 64
CLOSE = 1e-3


def load(model: Path = VECTORS / "tiny_model.onnx", slots: int = 256) -> _core.OrtEngine:
    return _core.OrtEngine(
        str(model),
        ort_library(),
        slots=slots,
        vocabulary=tiny.VOCABULARY,
        max_positions=tiny.POSITIONS,
        name="tiny",
    )


def fake(disagreement: float = 0.0, base_seconds: float = 0.0) -> _core.FakeEngine:
    return _core.FakeEngine(
        tiny.VOCABULARY, 256, seed=3, disagreement=disagreement, base_seconds=base_seconds
    )


class Ring:
    """The caller's side of an engine: gives each node a slot, knows the path to it, builds the bias."""

    def __init__(self, engine: _core.Engine, order: Sequence[int] | None = None) -> None:
        self.engine = engine
        self.free = list(order if order is not None else range(engine.info.slots))
        self.tokens: dict[int, int] = {}

    def forward(self, nodes: list[tuple[list[int], int]]) -> tuple[Array, list[list[int]]]:
        """One forward over ``(path, token)`` nodes; a path lists slots, or -1 - i for node i's of this batch.

        Returns every node's logits and the slots of the path down to it, its own last.
        """
        paths: list[list[int]] = []
        for path, token in nodes:
            slot = self.free.pop(0)
            self.tokens[slot] = token
            before = [s for step in path for s in (paths[-step - 1] if step < 0 else [step])]
            paths.append([*before, slot])
        highest = max(max(path) for path in paths)
        visible = (highest // GRANULE + 1) * GRANULE
        bias = np.full((len(nodes), visible), -np.inf, np.float32)
        for row, path in enumerate(paths):
            bias[row, path] = 0
        logits = self.engine.forward(
            [token for _, token in nodes],
            [len(path) - 1 for path in paths],
            [path[-1] for path in paths],
            bias,
            list(range(len(nodes))),
        )
        return logits, paths

    def chain(self, path: list[int], tokens: list[int]) -> tuple[Array, list[int]]:
        """``tokens`` one below the other under ``path``, in one forward."""
        nodes = [(path if i == 0 else [-i], token) for i, token in enumerate(tokens)]
        logits, paths = self.forward(nodes)
        return logits, paths[-1]

    def drop(self, slots: list[int]) -> None:
        self.free[:0] = slots

    def text(self, path: list[int]) -> list[int]:
        return [self.tokens[slot] for slot in path]


def last_reference(tokens: list[int]) -> Array:
    last: Array = tiny.reference(tokens)[-1]
    return last


def tokens_of(seed: int, count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, tiny.VOCABULARY, count)]
