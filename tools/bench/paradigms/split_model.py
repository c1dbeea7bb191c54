"""A causal language model of transformers cut in two between layers, each part with keys and values of its
own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from acespec_edge.errors import UsageError
from cloud_stub.verifiers.base import Rows
from cloud_stub.verifiers.kv_cache import TailCache

States = npt.NDArray[np.float16]
"""Hidden states as they travel, [T, H]."""

_LARGEST = float(torch.finfo(torch.float16).max)


class _Part:
    """Layers `first` to `last - 1` over one text. One thread at a time."""

    def __init__(self, model: Any, first: int, last: int) -> None:
        self._layers = list(model.model.layers[first:last])
        self._rotary = model.model.rotary_emb
        # A layer finds its keys and values by its place in the whole model.
        self._places = last
        self._cache = TailCache(last)
        self._length = 0

    @property
    def length(self) -> int:
        """Tokens seen so far."""
        return self._length

    def begin(self) -> None:
        """Forgets the text."""
        self._cache = TailCache(self._places)
        self._length = 0

    def _through(self, hidden: torch.Tensor) -> torch.Tensor:
        """[1, T, H] of the tokens that follow, in and out; every token sees those before it and itself."""
        start, count = self._length, hidden.shape[1]
        positions = torch.arange(start, start + count)[None]
        mask = torch.ones((count, start + count), dtype=torch.bool).tril(start)[None, None]
        angles = self._rotary(hidden, position_ids=positions)
        for layer in self._layers:
            hidden = layer(
                hidden,
                attention_mask=mask,
                position_ids=positions,
                cache=self._cache,
                use_cache=True,
                position_embeddings=angles,
            )
        self._length += count
        return hidden


class Front(_Part):
    """The embedding and the first `layers` layers; nothing else of the model is kept."""

    def __init__(self, model: Any, layers: int) -> None:
        super().__init__(model, 0, checked_cut(model, layers))
        self._embed = model.model.embed_tokens

    @torch.inference_mode()
    def states(self, tokens: Sequence[int]) -> States:
        """Hidden states of the tokens that follow, [T, H], each number to its nearest half-precision one."""
        hidden = self._through(self._embed(torch.tensor([list(tokens)])))
        states: States = hidden[0].clamp(-_LARGEST, _LARGEST).half().numpy()
        return states


class Back(_Part):
    """The layers from `layers` on, and the head. The weights are shared with the whole model."""

    def __init__(self, model: Any, layers: int) -> None:
        total = len(model.model.layers)
        super().__init__(model, checked_cut(model, layers), total)
        self.share = (total - layers) / total
        """Of the model's layers."""
        self.width = int(model.config.hidden_size)
        self._norm = model.model.norm
        self._head = model.get_output_embeddings()
        self._dtype = model.dtype

    @torch.inference_mode()
    def logits(self, states: States) -> Rows:
        """Logits after the last of the states [T, H], float32 [V]."""
        hidden = torch.from_numpy(states.copy()).to(self._dtype)[None]
        row: Rows = self._head(self._norm(self._through(hidden)[0, -1:]))[0].float().numpy()
        return np.ascontiguousarray(row)


def checked_cut(model: Any, layers: int) -> int:
    """`layers`; raises UsageError unless both parts have a layer."""
    total = len(model.model.layers)
    if not 0 < layers < total:
        raise UsageError(f"split_layers is {layers}: of {total} layers, 1 to {total - 1} can be on the edge")
    return layers
