"""Outputs of chosen layers, caught as a forward passes by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from acespec_edge.errors import UsageError


class HiddenStates:
    """Hooks on some layers of a causal language model of transformers; no layer is run for their sake.

    What is caught is the residual stream as a layer leaves it, before any norm that follows: in the model's
    own ``hidden_states`` that of layer l is entry l + 1, except that the last entry there is normed. Holds
    what the last forward left until it is taken. One thread at a time.
    """

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        """``layers``: from 0, ascending. Raises UsageError for others, or for those the model does not
        have.
        """
        stack = model.base_model.layers
        if not layers or list(layers) != sorted({*layers}) or not 0 <= layers[0] <= layers[-1] < len(stack):
            raise UsageError(
                f"layers is {list(layers)}: ascending numbers from 0 to {len(stack) - 1} would be right"
            )
        self.layers = tuple(layers)
        self._caught: dict[int, torch.Tensor] = {}
        self._hooks = [stack[layer].register_forward_hook(self._catcher(layer)) for layer in layers]

    def take(self, rows: int | None = None) -> torch.Tensor:
        """Of the last forward, the last ``rows`` tokens (all of them when None), [layers, batch, rows,
        hidden]; a copy, after which nothing is held.
        """
        caught, self._caught = self._caught, {}
        first = 0 if rows is None else -rows
        return torch.stack([caught[layer][:, first:] for layer in self.layers])

    def remove(self) -> None:
        """Takes the hooks off."""
        for hook in self._hooks:
            hook.remove()
        self._caught.clear()

    def _catcher(self, layer: int) -> Any:
        def catch(module: Any, inputs: Any, output: Any) -> None:
            self._caught[layer] = output[0] if isinstance(output, tuple) else output

        return catch
