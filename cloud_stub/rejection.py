"""What the cloud says of its distribution where it rejected a drafted token (docs/protocol.md, "Residual
mode").
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from acespec_edge import _core
from cloud_stub.verifiers.base import Rows

Probabilities = npt.NDArray[np.float32]

_HEAD: Final = 64
"""Tokens of the head, at most."""

_SAMPLES: Final = 8
"""Tail samples of one message."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A position whose token the edge is to draw. ``p``: float32 [V], the distribution that the rules leave
    there; ``logits``: the plain row behind it. ``sent``: tail samples that went out before.
    """

    position: int
    seed: int
    p: Probabilities
    logits: Rows
    sent: int = 0
    sparse: _core.SparseRow = field(init=False)

    def __post_init__(self) -> None:
        most = min(_HEAD, len(self.p))
        head = np.argpartition(self.p, len(self.p) - most)[len(self.p) - most :]
        head = head[np.argsort(-self.p[head], kind="stable")]
        head = head[self.p[head] > 0]
        rest = self.p.astype(np.float64)
        rest[head] = 0.0
        edges = rest.cumsum()
        mass = float(edges[-1])
        sparse = _core.SparseRow(
            head=[(int(token), _probability(self.p[token])) for token in head],
            tail_mass=_probability(mass),
            tail=[self._sample(edges, self.sent + index) for index in range(_SAMPLES)] if mass > 0 else [],
        )
        object.__setattr__(self, "sparse", sparse)

    def more(self) -> Rejection:
        """The same with the tail samples that follow."""
        return replace(self, sent=self.sent + _SAMPLES)

    def _sample(self, edges: npt.NDArray[np.float64], number: int) -> tuple[int, float]:
        u, _ = _core.stream_uniforms(self.seed, _core.Stream.tail, self.position, number)
        # The last edge itself is out of reach: u is below 1, but the product may round up.
        point = min(u * edges[-1], np.nextafter(edges[-1], 0.0))
        token = int(np.searchsorted(edges, point, side="right"))
        return token, _probability(self.p[token])


def _probability(value: float) -> float:
    """Rounding may lead a little past 1, where no message goes."""
    return min(float(value), 1.0)
