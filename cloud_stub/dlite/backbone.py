"""The parallel part: all places of a block in one pass."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from cloud_stub.dlite.config import HeadConfig


class Backbone(nn.Module):
    """A few transformer layers without a causal mask, over ``[features, anchor, placeholders]``.

    Positions are local: features are at 0, 1, ..., the anchor and the placeholders behind them, wherever in
    the text the block lies. So one pass costs the same however long the text is; there is no cache. A
    teacher may be given a window of the past beside it (``history``), whose entries lie at -1, -2, ... and
    are keys and values only.
    """

    def __init__(self, config: HeadConfig, hidden: int) -> None:
        super().__init__()
        self._injects = config.backbone == "injected"
        self._block = config.block
        self._theta = config.rope_theta
        self._half = config.head_dim // 2
        self.placeholder = nn.Parameter(torch.zeros(hidden))
        self.layers = nn.ModuleList(_Layer(config, hidden) for _ in range(config.layers))

    def forward(
        self,
        features: torch.Tensor,
        anchor: torch.Tensor,
        history: torch.Tensor | None = None,
        known: torch.Tensor | None = None,
        block: int | None = None,
    ) -> torch.Tensor:
        """Hidden states of the placeholders, [B, K, H].

        ``features``: [B, L, H]; ``anchor``: its embedding, [B, H]. ``history``: [B, W, H], the newest last;
        ``known``: bool [B, W], the entries that exist. ``block``: placeholders, if not as many as configured.
        """
        batch, depth = features.shape[:2]
        count = self._block if block is None else block
        queries = torch.cat([anchor[:, None], self.placeholder.expand(batch, count, -1)], dim=1)
        places = torch.arange(depth + queries.shape[1], device=features.device)
        if self._injects:
            x, x_places, extra, extra_places = queries, places[depth:], features, places[:depth]
        else:
            x, x_places = torch.cat([features, queries], dim=1), places
            extra, extra_places = features[:, :0], places[:0]
        seen = None
        if history is not None:
            window = history.shape[1]
            extra = torch.cat([history, extra], dim=1)
            extra_places = torch.cat([torch.arange(-window, 0, device=places.device), extra_places])
            seen = torch.ones((batch, 1, 1, extra.shape[1] + x.shape[1]), dtype=torch.bool, device=x.device)
            if known is not None:
                seen[:, 0, 0, :window] = known
        turns = self._turns(torch.cat([extra_places, x_places]))
        for layer in self.layers:
            x = layer(x, extra, turns, seen)
        return x[:, -count:]

    def _turns(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of the rotary angles, [places, head_dim / 2] each."""
        exponents = torch.arange(self._half, device=places.device) / self._half
        angles = places[:, None] * self._theta**-exponents
        return angles.cos(), angles.sin()


class _Layer(nn.Module):
    """Attention and a gated feed-forward part, each behind a norm and beside a residual."""

    def __init__(self, config: HeadConfig, hidden: int) -> None:
        super().__init__()
        width = config.heads * config.head_dim
        self._heads = config.heads
        self.attn_norm = nn.RMSNorm(hidden, eps=config.rms_eps)
        self.query = nn.Linear(hidden, width, bias=False)
        self.key = nn.Linear(hidden, width, bias=False)
        self.value = nn.Linear(hidden, width, bias=False)
        self.out = nn.Linear(width, hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(hidden, eps=config.rms_eps)
        self.gate = nn.Linear(hidden, config.intermediate, bias=False)
        self.up = nn.Linear(hidden, config.intermediate, bias=False)
        self.down = nn.Linear(config.intermediate, hidden, bias=False)
        for name, part in self.named_children():
            if isinstance(part, nn.Linear):
                # Sums of 2 * layers branches keep the scale of one.
                last = name in ("out", "down")
                spread = part.in_features**-0.5 * ((2 * config.layers) ** -0.5 if last else 1.0)
                nn.init.normal_(part.weight, std=spread)

    def forward(
        self,
        x: torch.Tensor,
        extra: torch.Tensor,
        turns: tuple[torch.Tensor, torch.Tensor],
        seen: torch.Tensor | None,
    ) -> torch.Tensor:
        """``x``: [B, T, H]; ``extra``: [B, E, H], keys and values only, which come before those of ``x``.
        ``turns``: of all E + T; ``seen``: bool, broadcast to [B, heads, T, E + T].
        """
        first = extra.shape[1]
        normed = self.attn_norm(x)
        sources = torch.cat([extra, normed], dim=1)
        query = _turned(self._split(self.query(normed)), (turns[0][first:], turns[1][first:]))
        key = _turned(self._split(self.key(sources)), turns)
        mixed = functional.scaled_dot_product_attention(query, key, self._split(self.value(sources)), seen)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        normed = self.mlp_norm(x)
        added: torch.Tensor = self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return x + added

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, width = x.shape
        return x.view(batch, rows, self._heads, width // self._heads).transpose(1, 2)


def _turned(x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cosine, sine = (turn.to(x.dtype) for turn in turns)
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1)
