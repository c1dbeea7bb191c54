"""The draw in PyTorch: ``_core.Sampler.choose`` for rows on a device."""

from __future__ import annotations

import math
from typing import Final

import torch

from acespec_edge._core import SamplingRules
from acespec_edge.errors import EngineError, UsageError
from cloud_stub.sampling.noise import gumbel, gumbel_words

_NEVER: Final = float("-inf")


class TorchSampler:
    """Chooses by ``argmax log p + G(seed, position, token)``; the row never leaves its device.

    The choice is that of ``_core.Sampler``, by the same noise words and in double precision. Two candidates
    that differ by the last rounding of a logarithm, or a share that meets ``top_p`` to within 1e-6, may go
    the other way. One thread at a time. Raises what ``_core.Sampler`` raises.
    """

    def __init__(self, vocabulary: int, *, device: torch.device) -> None:
        self.vocabulary = vocabulary
        self._device = device

    def choose(self, logits: torch.Tensor, rules: SamplingRules, position: int) -> int:
        """The token at absolute ``position``. ``logits``: float32 [>= vocabulary]; the rest is padding."""
        rules.validate()
        if len(logits) < self.vocabulary:
            raise UsageError(f"logits has {len(logits)} columns; the vocabulary needs {self.vocabulary}")
        if position < 0:
            raise UsageError(f"position is {position}; it must be at least 0")
        row = logits[: self.vocabulary]
        scores = row if rules.greedy else self._scores(row, rules, position)
        # One transfer for everything that is asked of the row.
        token, bad, empty = torch.stack(
            [scores.argmax(), ~(row < math.inf).all(), ~(row > _NEVER).any()]
        ).tolist()
        if bad:
            raise EngineError("logits hold NaN or +Inf")
        if empty:
            raise EngineError("no logit is finite: every token is ruled out")
        return int(token)

    def _scores(self, row: torch.Tensor, rules: SamplingRules, position: int) -> torch.Tensor:
        """What tokens are ranked by, float64 [vocabulary]; -inf for those that the rules drop."""
        scaled = row.double() / rules.temperature
        kept = kept_by_rules(row, scaled, rules)
        noise = gumbel(gumbel_words(rules.seed, position, len(row), self._device))
        return torch.where(kept, scaled + noise, _NEVER)


def kept_by_rules(row: torch.Tensor, scaled: torch.Tensor, rules: SamplingRules) -> torch.Tensor:
    """The tokens that min_p, top_k and top_p leave, bool [V], of a row that is not greedy.

    ``scaled``: the row divided by the temperature, float64. Equal logits count as ordered by token id.
    """
    kept = row > _NEVER
    top = scaled.max()
    if rules.min_p > 0:
        kept &= scaled >= top + math.log(rules.min_p)
    if 0 < rules.top_k < len(row):
        last = row.topk(rules.top_k).values[-1]
        above, level = row > last, row == last
        kept &= above | (level & (level.cumsum(0) <= rules.top_k - above.sum()))
    if rules.top_p < 1:
        weights = torch.where(kept, torch.exp(scaled - top), 0.0)
        order = weights.argsort(descending=True, stable=True)
        before = torch.cat([weights.new_zeros(1), weights[order].cumsum(0)[:-1]])
        kept &= torch.empty_like(kept).scatter_(0, order, before < rules.top_p * weights.sum())
    return kept
