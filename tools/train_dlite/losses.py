"""What is minimised. Distributions are over the draft vocabulary; all means are weighted means."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional


def place_weights(block: int, decay: float, device: torch.device | None = None) -> torch.Tensor:
    """``exp(-(i - 1) / decay)`` for the places i = 1..K: a place counts only when those before it were right
    (DLite, arXiv:2610.23787, with a decay of 4).
    """
    return torch.exp(-torch.arange(block, dtype=torch.float32, device=device) / decay)


def weighted_mean(values: torch.Tensor, weights: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Of [B, K] values, by the places' weights [K], over the places that are ``known``."""
    share = weights * known
    return (values * share).sum() / share.sum().clamp_min(1e-9)


@dataclass(frozen=True, slots=True)
class Aim:
    """The target's distribution: ``p``, [B, K, D], the part inside the draft vocabulary, and ``outside``,
    [B, K], the mass of all other tokens.
    """

    p: torch.Tensor
    outside: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor, draft_ids: torch.Tensor, drawable: int) -> Aim:
        """From logits over all tokens, [B, K, V], of which the first ``drawable`` can be drawn."""
        whole = torch.softmax(logits[..., :drawable].float(), dim=-1)
        whole = functional.pad(whole, (0, logits.shape[-1] - drawable))
        p = whole[..., draft_ids]
        return cls(p, (1.0 - p.sum(-1)).clamp_min(0.0))


def l1(aim: Aim, logits: torch.Tensor) -> torch.Tensor:
    """``||p - q||_1`` over all tokens, [B, K]: twice the total variation. The acceptance probability of
    rejection sampling is 1 less half of it.
    """
    q = torch.softmax(logits.float(), dim=-1)
    return (aim.p - q).abs().sum(-1) + aim.outside


def forward_kl(p: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """``KL(p || q)``, [B, K]; p is normalised first, for q has nothing outside the draft vocabulary."""
    p = p / p.sum(-1, keepdim=True).clamp_min(1e-9)
    log_q = torch.log_softmax(logits.float(), dim=-1)
    return (torch.xlogy(p, p) - p * log_q).sum(-1)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """``-log q(label)``, [B, K], of labels as places in the draft vocabulary; 0 for those of -1."""
    flat = functional.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="none"
    )
    return flat.view(labels.shape)


def likelihood(aim: Aim, logits: torch.Tensor) -> torch.Tensor:
    """``lambda KL + (1 - lambda) TV`` with ``lambda = exp(-3 alpha)``, alpha the acceptance probability,
    which is not differentiated; [B, K]. Where p and q hardly meet, the total variation has next to no
    gradient, and the divergence has.
    """
    variation = l1(aim, logits) / 2
    share = torch.exp(-3.0 * (1.0 - variation.detach()))
    return share * forward_kl(aim.p, logits) + (1.0 - share) * variation


def feature_distance(aim: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Smooth L1 (Huber's, from 1 on linear), the mean over the last axis, [B, K] of [B, K, H]: how far what
    the output matrix is given is from what the target gives it (EAGLE, arXiv:2401.15077).
    """
    return functional.smooth_l1_loss(hidden.float(), aim.float(), reduction="none").mean(-1)


def in_draft(labels: torch.Tensor, draft_ids: torch.Tensor) -> torch.Tensor:
    """Tokens as places in the draft vocabulary (ascending), int64 of the same shape; -1 for what is not in
    it.
    """
    places = torch.searchsorted(draft_ids, labels.clamp_min(0)).clamp_max(len(draft_ids) - 1)
    return torch.where(draft_ids[places] == labels, places, -1)
