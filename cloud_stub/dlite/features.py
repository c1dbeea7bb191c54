"""What the head makes of the target's hidden states."""

from __future__ import annotations

import torch
from torch import nn


class Features(nn.Module):
    """``z_l = RMSNorm_l(h_l) + e_l``: a norm of its own for every chosen layer, whose scales differ, and a
    learnable embedding of the layer's depth, zero at the start (DLite, arXiv:2610.23787).
    """

    def __init__(self, layers: int, hidden: int, *, eps: float, depth: bool) -> None:
        """``depth``: False leaves the embeddings out."""
        super().__init__()
        self._eps = eps
        self.weight = nn.Parameter(torch.ones(layers, hidden))
        self.depth = nn.Parameter(torch.zeros(layers, hidden)) if depth else None

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[..., layers, hidden] to the same."""
        return self._applied(states, slice(None))

    def deepest(self, states: torch.Tensor) -> torch.Tensor:
        """The last chosen layer alone, [..., hidden] to the same."""
        return self._applied(states[..., None, :], slice(-1, None))[..., 0, :]

    def _applied(self, states: torch.Tensor, layers: slice) -> torch.Tensor:
        # In single precision: layers of some models leave values that 16 bits cannot square.
        wide = states.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)
        features = normed.to(self.weight.dtype) * self.weight[layers]
        return features if self.depth is None else features + self.depth[layers]
