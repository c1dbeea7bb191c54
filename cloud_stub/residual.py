"""The residual rule: a drafted token of probability q is accepted with min(1, p/q).

Exact when q is the very distribution that the token was drawn from and the edge draws the correction from
(p - q)+ (Leviathan, Kalman, Matias: "Fast inference from transformers via speculative decoding", 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from acespec_edge import _core
from acespec_edge.errors import EngineError
from cloud_stub.judge import Ruling, Shape, Terms, as_it_is, choose, logprobs_of
from cloud_stub.rejection import Rejection
from cloud_stub.verifiers.base import Rows

_WEIGHTS: Final = 65536.0
"""What the weights of a drafter's distribution sum to."""


def judge_residual(
    rows: Rows,
    base: int,
    tokens: Sequence[int],
    weights: Sequence[int],
    terms: Terms,
    sampler: _core.Sampler,
    shape: Shape = as_it_is,
) -> Ruling:
    """Accepts a chain for as long as the request's random numbers have it.

    ``weights``: of each token in the drafter's distribution, 1 to 65,536. After a whole chain, or none, the
    target chooses as in coupled mode. The rest as of ``judge``.
    """
    for node, token in enumerate(tokens):
        position = base + node
        try:
            p = sampler.probabilities(shape(rows[node], tokens[:node]), terms.rules)
        except EngineError as error:
            raise EngineError(f"no token can be chosen at position {position}: {error}") from error
        u, _ = _core.stream_uniforms(terms.rules.seed, _core.Stream.accept, position)
        if u * weights[node] / _WEIGHTS >= p[token]:
            logits = np.array(rows[node])  # on its own: the other rows need not live as long
            reports = logprobs_of(list(rows[:node]), tokens[:node], terms, sampler)
            rejection = Rejection(position, terms.rules.seed, p, logits)
            return Ruling(list(range(node)), None, _core.Finish.none, reports, rejection)
        finish = terms.finish(token, position + 1)
        if finish != _core.Finish.none:
            reports = logprobs_of(list(rows[: node + 1]), tokens[: node + 1], terms, sampler)
            return Ruling(list(range(node)), token, finish, reports)
    bonus = choose(rows[len(tokens)], tokens, base + len(tokens), terms, sampler, shape)
    return Ruling(
        list(range(len(tokens))),
        bonus,
        terms.finish(bonus, base + len(tokens) + 1),
        logprobs_of(list(rows[: len(tokens) + 1]), [*tokens, bonus], terms, sampler),
    )
