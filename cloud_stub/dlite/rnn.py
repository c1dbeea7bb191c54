"""The sequential part: order inside a block."""

from __future__ import annotations

import torch
from torch import nn


class GatedRnn(nn.Module):
    """A recurrence of low rank that tells each place which token came before it (DLite, arXiv:2610.23787).

    With the embedding E of the token before, the state s and the hidden state h of the place::

        e = W_x E;  z = [s; e; h]
        s' = g * s + (1 - g) * tanh(W_c z),  g = sigmoid(W_g z)
        h' = h + W_up tanh(W_o z)

    W_up is zero at the start: the recurrence adds nothing until it has learned something. It adds in hidden
    space, so that every place is projected onto the vocabulary once.
    """

    def __init__(self, hidden: int, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.down = nn.Linear(hidden, rank, bias=False)
        self.gate = nn.Linear(2 * rank + hidden, rank)
        self.candidate = nn.Linear(2 * rank + hidden, rank)
        self.inner = nn.Linear(2 * rank + hidden, rank)
        self.up = nn.Linear(rank, hidden, bias=False)
        nn.init.zeros_(self.up.weight)

    def start(self, batch: int) -> torch.Tensor:
        """The state before the first place, [batch, rank]."""
        return self.up.weight.new_zeros(batch, self.rank)

    def step(
        self, state: torch.Tensor, before: torch.Tensor, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The next state and h' of one place. ``before``: embedding of the token before it, [B, H], as is
        ``hidden``.
        """
        z = torch.cat([state, self.down(before), hidden], dim=-1)
        gate = torch.sigmoid(self.gate(z))
        following = gate * state + (1 - gate) * torch.tanh(self.candidate(z))
        return following, hidden + self.up(torch.tanh(self.inner(z)))
