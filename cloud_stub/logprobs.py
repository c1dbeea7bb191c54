"""Log-probabilities as they are reported: of the target's plain softmax, before any rule."""

from __future__ import annotations

from typing import Final

import numpy as np

from acespec_edge import _core
from cloud_stub.verifiers.base import Rows

_LEAST: Final = -9999.0
"""Stands for minus infinity, which no message carries."""


def token_logprob(logits: Rows, token: int, alternatives: int) -> _core.TokenLogprob:
    """The report on ``token``, with the likeliest tokens (equal ones by id).

    ``logits``: float32 [V], drawable ids alone, one at least finite. Sums in double precision. O(V).
    """
    exact = logits.astype(np.float64)
    peak = float(exact.max())
    log_z = peak + float(np.log(np.exp(exact - peak).sum()))
    count = min(alternatives, len(exact))
    likeliest: list[int] = []
    if count:
        # All that tie with the last of them take part, so that the order by id holds at the edge, too.
        level = np.partition(exact, len(exact) - count)[len(exact) - count]
        candidates = np.flatnonzero(exact >= level)
        likeliest = candidates[np.argsort(-exact[candidates], kind="stable")][:count].tolist()
    return _core.TokenLogprob(
        logprob=max(float(exact[token]) - log_z, _LEAST),
        top=[(other, max(float(exact[other]) - log_z, _LEAST)) for other in likeliest],
    )
