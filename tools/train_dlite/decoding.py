"""Many answers at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache

from cloud_stub.verifiers.base import drawable
from cloud_stub.verifiers.kv_cache import TailLayer
from cloud_stub.verifiers.torch_verifier import TorchVerifier

_LEAST_GONE = 8
"""Rows that must have ended before the rest move together, which costs a copy of their KV."""


@dataclass(frozen=True, slots=True)
class Row:
    """One answer to be written: ``prompt`` as token ids, the ``temperature`` of its choices (0 is greedy),
    and the most ``tokens`` of it.
    """

    prompt: Sequence[int]
    temperature: float
    tokens: int


class _Layer(TailLayer):  # type: ignore[no-untyped-call]
    """KV of several texts of one length."""

    def choose(self, rows: torch.Tensor) -> None:
        """Goes on with ``rows`` alone."""
        assert self._key_buffer is not None and self._value_buffer is not None
        self._key_buffer, self._value_buffer = self._key_buffer[rows], self._value_buffer[rows]


@torch.inference_mode()
def decode_together(
    verifier: TorchVerifier,
    rows: Sequence[Row],
    stop_ids: Sequence[int],
    seed: int,
    forwarded: Callable[[list[int]], None] = lambda numbers: None,
) -> list[list[int]]:
    """The answer to each row, up to a stop id (which it then ends with) or its most tokens. ``forwarded``
    hears, after each forward, which rows were in it, in its order: the last token of each is the one that
    its next token is chosen from.

    Prompts are padded on the left, so that all rows get their next token from one forward; the large matrices
    are then read once for all of them, which is what decoding on a CPU is about. Rows that have ended are
    taken out. Random choices follow from ``seed`` and the rows.
    """
    model, device = verifier.model, verifier.model.device
    count, longest = len(rows), max(len(row.prompt) for row in rows)
    steps = max(row.tokens for row in rows)
    generator = torch.Generator(device).manual_seed(seed)
    layers = [_Layer() for _ in range(model.config.get_text_config().num_hidden_layers)]
    cache = Cache(layers=[*layers])
    pads = torch.tensor([longest - len(row.prompt) for row in rows], device=device)
    ids = torch.tensor([[0] * (longest - len(row.prompt)) + list(row.prompt) for row in rows], device=device)
    columns = torch.arange(longest + steps, device=device)
    seen = columns[None] >= pads[:, None]
    mask = seen[:, None, None, :longest] & (columns[:longest] <= columns[:longest, None])
    # A row of padding sees itself: a softmax of nothing is no number.
    mask = mask | torch.eye(longest, dtype=torch.bool, device=device)
    positions = (columns[None, :longest] - pads[:, None]).clamp_min(0)
    temperatures = torch.tensor([row.temperature for row in rows], device=device)
    left = torch.tensor([row.tokens for row in rows], device=device)
    stops = torch.tensor(list(stop_ids), device=device)
    alive = torch.arange(count, device=device)
    answers: list[list[int]] = [[] for _ in rows]
    going = torch.ones(count, dtype=torch.bool, device=device)
    for step in range(steps):
        logits = model(
            input_ids=ids, position_ids=positions, attention_mask=mask, logits_to_keep=1, use_cache=True,
            cache=cache,
        ).logits[:, -1, : drawable(verifier)]  # fmt: skip
        forwarded(alive.tolist())
        chosen = _chosen(logits, temperatures, generator)
        for number, token, goes in zip(alive.tolist(), chosen.tolist(), going.tolist(), strict=True):
            if goes:
                answers[number].append(token)
        going = going & ~torch.isin(chosen, stops) & (left > step + 1)
        remain = int(going.sum())
        if not remain:
            break
        if len(going) - remain >= min(_LEAST_GONE, len(going) // 2 + 1):
            kept = going.nonzero()[:, 0]
            for layer in layers:
                layer.choose(kept)
            alive, chosen, pads, seen = alive[kept], chosen[kept], pads[kept], seen[kept]
            temperatures, left, going = temperatures[kept], left[kept], going[kept]
        end = longest + step + 1
        ids, positions = chosen[:, None], (end - 1 - pads)[:, None]
        mask = seen[:, None, None, :end]
    return answers


def _chosen(logits: torch.Tensor, temperatures: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A token of each row, int64 [rows]."""
    chosen = logits.argmax(-1)
    drawn = (temperatures > 0).nonzero()[:, 0]
    if len(drawn):
        shares = torch.softmax(logits[drawn].float() / temperatures[drawn, None], dim=-1)
        chosen[drawn] = torch.multinomial(shares, 1, generator=generator)[:, 0]
    return chosen
