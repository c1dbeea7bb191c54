"""The norm of a decoder's rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from acespec_edge.export.ops import GraphWriter


def rms_norm(graph: GraphWriter, x: str, out: str, gain: NDArray[np.float32], epsilon: float) -> str:
    """Adds the RMS norm over the last axis of `x`, times `gain` [its size], as `out`, and returns `out`."""
    scale = graph.constant(f"{out}.gain", gain)
    return graph.node("RMSNormalization", [x, scale], out, axis=-1, epsilon=epsilon)
