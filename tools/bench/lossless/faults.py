"""Ways to get it wrong: each makes a cloud or an edge that the suite must reject."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from acespec_edge import _core
from acespec_edge.rules import replaced
from cloud_stub.verifiers.base import KeptHandle, Rows
from cloud_stub.verifiers.scripted import ScriptedVerifier


def without(rules: _core.SamplingRules, fields: Sequence[str]) -> _core.SamplingRules:
    """The rules as a cloud sees them that drops some in silence; of ``fields``, what is a rule: a grammar
    travels beside them."""
    plain = _core.SamplingRules(temperature=1.0)
    return replaced(rules, **{name: getattr(plain, name) for name in fields if hasattr(plain, name)})


class Credulous:
    """A verifier that passes the first drafted token without asking the model."""

    def __init__(self, honest: ScriptedVerifier) -> None:
        self._honest = honest
        self.name, self.vocabulary = honest.name, honest.vocabulary
        self.logits_width, self.max_context = honest.logits_width, honest.max_context

    def open(self) -> KeptHandle:
        """See ``Verifier.open``."""
        return _CredulousHandle(self._honest.open())


class _CredulousHandle:
    def __init__(self, honest: KeptHandle) -> None:
        self._honest = honest
        self.prefill, self.keep, self.close = honest.prefill, honest.keep, honest.close
        self.crop = honest.crop

    @property
    def length(self) -> int:
        return self._honest.length

    def verify(self, tip: int, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        rows = self._honest.verify(tip, tokens, parents)
        if tokens:
            rows[0] = -np.inf
            rows[0, tokens[0]] = 0.0
        return rows

    def branch(self, length: int) -> _CredulousHandle:
        return _CredulousHandle(self._honest.branch(length))


class Forgetful(_core.Drafter):
    """A drafter that draws corrections from the target's row, as if it had never drawn from its own."""

    def __init__(self, engine: _core.Engine, options: _core.DrafterOptions) -> None:
        super().__init__(engine, options)
        self._random = random.Random(0)

    def resample(self, depth: int, row: _core.SparseRow) -> int | None:
        """See ``_core.Drafter.resample``; of a row that its head describes whole."""
        return self._random.choices([token for token, _ in row.head], [p for _, p in row.head])[0]
