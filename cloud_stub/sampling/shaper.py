"""The rules that change logits, in PyTorch: ``_core.LogitShaper`` for rows on a device, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from acespec_edge._core import SamplingRules
from acespec_edge.errors import UsageError

_NEVER: Final = float("-inf")
_WORD_BITS: Final = 32


class TorchShaper:
    """Shapes the rows of one request, whose prompt and output it counts.

    Every operation is one of IEEE single precision in the order of the rules, none of them fused. One thread
    at a time. Raises what ``_core.LogitShaper`` raises.
    """

    def __init__(
        self,
        vocabulary: int,
        rules: SamplingRules,
        prompt: Sequence[int],
        stop_ids: Sequence[int] = (),
        *,
        device: torch.device,
    ) -> None:
        rules.validate()
        self._vocabulary = vocabulary
        self._device = device
        own = len(prompt) - rules.carried
        if own < 0:
            raise UsageError(f"carried is {rules.carried}; the prompt has {len(prompt)} tokens")
        biases = dict(rules.logit_bias)
        for field, tokens in (
            ("banned", rules.banned),
            ("allowed", rules.allowed),
            ("logit_bias", list(biases)),
            ("prompt", prompt),
        ):
            self._check(field, tokens)
        self._min_tokens = rules.min_tokens
        self._output = 0
        self._stops = self._ids([token for token in stop_ids if 0 <= token < vocabulary])
        self._out = self._ruled_out(rules)
        self._biased, self._bias = self._ids(list(biases)), self._floats(list(biases.values()))
        self._repetition, self._frequency, self._presence = self._floats(
            [rules.repetition_penalty, rules.frequency_penalty, rules.presence_penalty]
        )
        self._penalizes = (
            rules.repetition_penalty != 1 or rules.frequency_penalty != 0 or rules.presence_penalty != 0
        )
        self._prompted = self._counted(prompt[:own]) > 0
        self._counts = self._counted([])
        self.commit(prompt[own:])

    def commit(self, tokens: Sequence[int]) -> None:
        """Appends to the output."""
        self._check("output", tokens)
        self._output += len(tokens)
        if self._penalizes:
            self._counts += self._counted(tokens)

    def shapes(self) -> bool:
        """False when every row without a mask is left as it is, now and later."""
        return (
            self._penalizes
            or self._out is not None
            or len(self._biased) > 0
            or self._withholds_stops(self._output)
        )

    def shape(
        self, logits: torch.Tensor, path: Sequence[int] = (), mask: npt.NDArray[np.uint32] | None = None
    ) -> torch.Tensor:
        """The row after the committed tokens and ``path``: float32 [vocabulary], or ``logits`` itself when
        nothing is to be done. ``mask`` as ``_core.LogitShaper.shape`` takes it.
        """
        if len(logits) < self._vocabulary:
            raise UsageError(f"logits has {len(logits)} columns; the vocabulary needs {self._vocabulary}")
        self._check("path", path)
        forbidden = None if mask is None else self._masked(mask)
        if forbidden is None and not self.shapes():
            return logits
        row = logits[: self._vocabulary].clone()
        for out in (self._out, forbidden):
            if out is not None:
                row.masked_fill_(out, _NEVER)
        if self._withholds_stops(self._output + len(path)):
            row[self._stops] = _NEVER
        row[self._biased] += self._bias
        return self._penalized(row, path) if self._penalizes else row

    def _penalized(self, row: torch.Tensor, path: Sequence[int]) -> torch.Tensor:
        counts = self._counts + self._counted(path) if path else self._counts
        written = counts > 0
        repeated = torch.where(row > 0, row / self._repetition, row * self._repetition)
        row = torch.where(self._prompted | written, repeated, row)
        row = torch.where(written, row - self._frequency * counts, row)
        return torch.where(written, row - self._presence, row)

    def _withholds_stops(self, written: int) -> bool:
        return len(self._stops) > 0 and written < self._min_tokens

    def _ruled_out(self, rules: SamplingRules) -> torch.Tensor | None:
        """Which tokens never come, bool [vocabulary]; None when all may."""
        if not rules.allowed and not rules.banned:
            return None
        out = torch.zeros(self._vocabulary, dtype=torch.bool, device=self._device)
        if rules.allowed:
            out[:] = True
            out[self._ids(rules.allowed)] = False
        out[self._ids(rules.banned)] = True
        return out

    def _masked(self, mask: npt.NDArray[np.uint32]) -> torch.Tensor:
        """Which tokens the mask forbids, bool [vocabulary]."""
        words = -(-self._vocabulary // _WORD_BITS)
        if mask.size < words:
            raise UsageError(f"mask has {mask.size} words; the vocabulary needs {words}")
        bits = torch.from_numpy(mask[:words].view(np.int32).copy()).to(self._device)
        places = torch.arange(_WORD_BITS, dtype=torch.int32, device=self._device)
        return (bits[:, None] >> places & 1).flatten()[: self._vocabulary] == 0

    def _counted(self, tokens: Sequence[int]) -> torch.Tensor:
        """How often each token occurs, float32 [vocabulary]: exact below 2^24."""
        counts = torch.zeros(self._vocabulary, device=self._device)
        return counts.index_add_(0, self._ids(tokens), torch.ones(len(tokens), device=self._device))

    def _check(self, field: str, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not 0 <= token < self._vocabulary:
                raise UsageError(f"{field} names token {token}; the vocabulary has {self._vocabulary}")

    def _ids(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(tokens), dtype=torch.int64, device=self._device)

    def _floats(self, values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.float32, device=self._device)
