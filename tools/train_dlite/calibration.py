"""Calibrates a confidence head: one temperature for each place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from torch.nn import functional

from cloud_stub.dlite.model import DLiteHead, Guess

_TEMPERATURES: Final = [2.0 ** (step / 8) for step in range(-24, 25)]
"""1/8 to 8, by ninths of an octave and less."""


def calibrate(head: DLiteHead, guesses: Iterable[tuple[Guess, torch.Tensor, torch.Tensor]]) -> None:
    """Sets the temperature of each place to the one of a grid under which its estimates say most of what is
    accepted. ``guesses``: made with temperatures of 1; what is accepted, and which places there are, [B, K]
    each.
    """
    found = list(guesses)
    doubts = torch.cat([guess.doubt for guess, _, _ in found if guess.doubt is not None]).float()
    accepted = torch.cat([share for _, share, _ in found]).float().clamp(0.0, 1.0)
    known = torch.cat([known for _, _, known in found])
    grid = torch.tensor(_TEMPERATURES, device=doubts.device)
    scaled = doubts[None] / grid[:, None, None]
    aims = accepted.expand_as(scaled)
    losses = functional.binary_cross_entropy_with_logits(scaled, aims, reduction="none")
    best = (losses * known).sum(1).argmin(0)
    head.temperature.copy_(grid[best])
