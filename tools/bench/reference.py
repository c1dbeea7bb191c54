"""The target alone, decoded as plainly as can be: what every other way of decoding must reproduce.

Shares nothing with the verifier but the loaded weights: no tree, no mask, its own cache, one token at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

TIE = 1e-4
"""Two best logits closer than this may change places when the same sum is done in another order."""


@dataclass(frozen=True)
class Greedy:
    """Tokens of a greedy run and, for each, by how much its logit led the second best."""

    tokens: list[int]
    leads: list[float]


@dataclass(frozen=True)
class Difference:
    """Where a run left the reference. `lead` is that of the expected token; None stands for an end of
    text."""

    position: int
    expected: int | None
    got: int | None
    lead: float

    @property
    def tie(self) -> bool:
        """Whether the target itself hardly preferred one token over the other."""
        return self.lead < TIE and self.expected is not None and self.got is not None


@torch.inference_mode()
def greedy(
    model: Any, prompt: Sequence[int], vocabulary: int, stop_ids: Sequence[int], max_tokens: int
) -> Greedy:
    """Decodes up to `max_tokens` tokens with a causal language model of transformers, to a stop id at most.

    Ids from `vocabulary` on are padding of the checkpoint and are never chosen.
    """
    tokens: list[int] = []
    leads: list[float] = []
    fed = torch.tensor([list(prompt)], device=model.device)
    cache = DynamicCache(config=model.config)
    while len(tokens) < max_tokens:
        output = model(input_ids=fed, cache=cache, use_cache=True, logits_to_keep=1)
        best = output.logits[0, -1, :vocabulary].float().topk(2)
        tokens.append(int(best.indices[0]))
        leads.append(float(best.values[0] - best.values[1]))
        if tokens[-1] in stop_ids:
            break
        fed = best.indices[:1].view(1, 1)
    return Greedy(tokens, leads)


def first_difference(reference: Greedy, got: Sequence[int]) -> Difference | None:
    """Where `got` leaves the reference first; None when they are equal."""
    for position, expected in enumerate(reference.tokens):
        found = got[position] if position < len(got) else None
        if found != expected:
            return Difference(position, expected, found, reference.leads[position])
    if len(got) > len(reference.tokens):
        return Difference(len(reference.tokens), None, got[len(reference.tokens)], 0.0)
    return None
