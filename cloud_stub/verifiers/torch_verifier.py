"""A target in PyTorch, through transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from acespec_edge.errors import EngineError, UsageError
from acespec_edge.protocol import ROOT, depths
from acespec_edge.vocabulary import Vocabulary
from cloud_stub.verifiers.base import Rows
from cloud_stub.verifiers.hidden_states import HiddenStates
from cloud_stub.verifiers.kv_cache import TailCache

FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Rotary types whose frequencies are settled when the model is loaded."""


class TorchVerifier:
    """Serves a causal language model of transformers. All calls from one thread.

    The model's attention must be full (no sliding window): a tree mask says who sees whom, whatever the
    layer. Its rotary frequencies must not depend on the length of a forward, else a token's logits would
    depend on the drafts beside it. Its attention implementation must be sdpa, which takes any mask of
    booleans; the eager one would add it to the scores, and hide nothing. Raises UsageError for models that
    are otherwise.
    """

    def __init__(
        self, model: Any, vocabulary: Vocabulary, *, name: str, max_context: int | None = None
    ) -> None:
        config = model.config.get_text_config()
        _require_full_attention(config, name)
        _require_boolean_masks(config, name)
        _require_fixed_rotation(config, name)
        positions = int(config.max_position_embeddings)
        if max_context is not None and not 2 <= max_context <= positions:
            raise UsageError(f"max_context is {max_context}: {name} takes 2 to {positions}")
        self.name = name
        self.vocabulary = vocabulary
        self.max_context = positions if max_context is None else max_context
        self.logits_width = int(model.get_output_embeddings().weight.shape[0])
        self.model = model.eval()
        self.device = str(model.device)
        self.dtype = str(model.dtype).removeprefix("torch.")
        self._layers = int(config.num_hidden_layers)
        self._states: HiddenStates | None = None

    def watch(self, layers: Sequence[int]) -> None:
        """From the next forward on handles keep the outputs of these layers (``TorchHandle.features``), in
        place of those watched before. Raises UsageError for layers that the model does not have.
        """
        states = HiddenStates(self.model, layers)
        if self._states is not None:
            self._states.remove()
        self._states = states

    def open(self) -> TorchHandle:
        """A handle with an empty context."""
        return TorchHandle(self, TailCache(self._layers))

    def warm_up(self) -> None:
        """One prefill and one verification, so that the first request does not pay for allocations and
        kernels.
        """
        handle = self.open()
        handle.prefill([0, 0])
        handle.verify(0, [0, 0], [ROOT, ROOT])
        handle.close()

    @torch.inference_mode()
    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        mask: torch.Tensor,
        cache: TailCache,
        rows: int,
    ) -> tuple[Rows, torch.Tensor | None]:
        """Logits of the last ``rows`` tokens, and of the same the outputs of the layers that are watched,
        [layers, rows, hidden]. ``mask``: bool [T, S], true where a token may look.
        """
        device = self.model.device
        output = self.model(
            input_ids=torch.tensor([list(tokens)], device=device),
            position_ids=torch.tensor([list(positions)], device=device),
            attention_mask=mask[None, None].to(device),
            logits_to_keep=rows,
            use_cache=True,
            cache=cache,
        )
        logits: Rows = output.logits[0].float().cpu().numpy()
        states = None if self._states is None else self._states.take(rows)[:, 0]
        return np.ascontiguousarray(logits), states


class TorchHandle:
    """KV of one request in a ``TailCache``.

    ``features``: outputs of the watched layers at the last committed token whose KV is held, [layers,
    hidden]; None before there is one, between ``verify`` and ``keep``, and when no layer is watched.
    """

    def __init__(self, verifier: TorchVerifier, cache: TailCache) -> None:
        self._verifier = verifier
        self._cache: TailCache | None = cache
        self._committed = 0
        self.features: torch.Tensor | None = None
        self._states: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens whose KV is held and committed."""
        return self._committed

    def prefill(self, tokens: Sequence[int]) -> Rows:
        """See ``Handle.prefill``."""
        if not tokens:
            raise UsageError("prefill of no tokens: at least one is needed")
        count, start = len(tokens), self._committed
        mask = torch.ones((count, start + count), dtype=torch.bool).tril(start)
        rows = self._forward(tokens, range(start, start + count), mask, 1)
        self._committed += count
        self._settle(0)
        return rows

    def verify(self, tip: int, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        """See ``Handle.verify``."""
        start, count = self._committed, 1 + len(tokens)
        positions = [start, *(start + depth for depth in depths(parents))]
        mask = torch.zeros((count, start + count), dtype=torch.bool)
        mask[:, :start] = True
        mask[:, start:] = tree_mask(parents)
        return self._forward([tip, *tokens], positions, mask, count)

    def keep(self, path: Sequence[int]) -> None:
        """See ``Handle.keep``."""
        self._open_cache().keep(self._committed, [0, *(1 + node for node in path)])
        self._committed += 1 + len(path)
        self._settle(1 + path[-1] if path else 0)

    def crop(self, length: int) -> None:
        """See ``KeptHandle.crop``. ``features`` are None until the next forward."""
        self._open_cache().keep(length, [])
        self._committed = length
        self._states = self.features = None

    def branch(self, length: int) -> TorchHandle:
        """See ``KeptHandle.branch``."""
        other = TorchHandle(self._verifier, self._open_cache().copy(length))
        other._committed = length
        return other

    def close(self) -> None:
        """See ``Handle.close``."""
        self._cache = self._states = self.features = None

    def _settle(self, row: int) -> None:
        """Keeps the states of the row that is now the last committed one; a copy, so that the others go."""
        states, self._states = self._states, None
        self.features = None if states is None else states[:, row].clone()

    def _forward(
        self, tokens: Sequence[int], positions: Sequence[int], mask: torch.Tensor, rows: int
    ) -> Rows:
        cache = self._open_cache()
        if cache.length != self._committed:
            raise EngineError(
                f"{cache.length} rows of KV for {self._committed} tokens: keep must follow verify"
            )
        self.features = None
        logits, self._states = self._verifier.forward(tokens, positions, mask, cache, rows)
        return logits

    def _open_cache(self) -> TailCache:
        if self._cache is None:
            raise UsageError("the handle is closed")
        return self._cache


def tree_mask(parents: Sequence[int]) -> torch.Tensor:
    """Bool [1 + n, 1 + n]: who sees whom among the tip (row 0) and the nodes; a node sees its ancestors
    and itself.
    """
    size = 1 + len(parents)
    mask = torch.zeros((size, size), dtype=torch.bool)
    mask[0, 0] = True
    for node, parent in enumerate(parents):
        mask[node + 1] = mask[parent + 1]
        mask[node + 1, node + 1] = True
    return mask


def _require_full_attention(config: Any, name: str) -> None:
    kinds = set(getattr(config, "layer_types", None) or [])
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    if kinds - {"full_attention"} or (not kinds and window):
        what = (
            f"layers of type {', '.join(sorted(kinds - {'full_attention'}))}"
            if kinds
            else f"a window of {window}"
        )
        raise UsageError(
            f"{name} has {what}: only models with full attention in every layer can verify a tree"
        )


def _require_boolean_masks(config: Any, name: str) -> None:
    kind = config._attn_implementation
    if kind != "sdpa":
        raise UsageError(
            f"{name} was loaded with attn_implementation={kind!r}, which cannot keep to a tree: "
            "'sdpa' would be right"
        )


def _require_fixed_rotation(config: Any, name: str) -> None:
    parameters = getattr(config, "rope_parameters", None) or {}
    kind = parameters.get("rope_type", "default")
    if kind not in FIXED_ROTATIONS:
        raise UsageError(
            f"{name} has rotary positions of type {kind!r}, whose frequencies may depend on the length of a "
            f"forward: one of {', '.join(FIXED_ROTATIONS)} would be right"
        )
