"""The head as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from acespec_edge.errors import UsageError
from cloud_stub.dlite.backbone import Backbone
from cloud_stub.dlite.config import HeadConfig
from cloud_stub.dlite.features import Features
from cloud_stub.dlite.rnn import GatedRnn


@dataclass(frozen=True, slots=True)
class History:
    """A window of the past, for a teacher: outputs of the last chosen layer before the last verified
    position, [B, W, H], the newest last. ``known``: bool [B, W], which of them exist.
    """

    states: torch.Tensor
    known: torch.Tensor


@dataclass(frozen=True, slots=True)
class Guess:
    """Of a block: ``hidden``, [B, K, H], normed, what the target's output matrix is given; ``logits`` over
    the draft vocabulary, [B, K, D]; ``doubt``, [B, K], the logit of being accepted, when the head has an
    estimate.
    """

    hidden: torch.Tensor
    logits: torch.Tensor
    doubt: torch.Tensor | None


class DLiteHead(nn.Module):
    """Guesses the K tokens that follow an anchor from what the target knew one token earlier.

    With t the last verified position: the features are the target's hidden states at t, the anchor is token
    t + 1, which has been chosen but not forwarded, and place T = 1..K guesses token t + 1 + T. The target's
    embedding and output matrix are used as they are, and never trained or saved. Not thread-safe.
    """

    draft_ids: torch.Tensor
    embedding: torch.Tensor
    projection: torch.Tensor
    temperature: torch.Tensor

    def __init__(
        self,
        config: HeadConfig,
        embedding: torch.Tensor,
        projection: torch.Tensor,
        draft_ids: torch.Tensor | None = None,
    ) -> None:
        """``embedding``, ``projection``: the target's, [width, H] each. ``draft_ids``: int64 [D], ascending;
        all tokens when None. Raises UsageError when the shapes do not go together.
        """
        super().__init__()
        width, hidden = projection.shape
        if draft_ids is None:
            draft_ids = torch.arange(width)
        if len(draft_ids) != config.draft_vocabulary:
            raise UsageError(
                f"draft_vocabulary is {config.draft_vocabulary}, and {len(draft_ids)} ids are given"
            )
        self.config = config
        self.hidden, self.width = hidden, width
        self.reduced = len(draft_ids) < width
        rows = projection.detach()
        if self.reduced:
            rows = rows[draft_ids.to(rows.device)]
        for name, frozen in (
            ("embedding", embedding.detach()),
            ("projection", rows),
            ("draft_ids", draft_ids),
        ):
            self.register_buffer(name, frozen, persistent=False)
        self.features = Features(len(config.aux_layers), hidden, eps=config.rms_eps, depth=config.depth)
        self.backbone = Backbone(config, hidden)
        self.rnn = GatedRnn(hidden, config.rank) if config.rnn else None
        self.norm = nn.RMSNorm(hidden, eps=config.rms_eps)
        self.confidence = nn.Linear(2 * hidden, 1) if config.confidence else None
        self.register_buffer("temperature", torch.ones(config.block), persistent=config.confidence)
        # On the scale of the embeddings, among which they stand.
        nn.init.normal_(self.backbone.placeholder, std=float(self.embedding[:1024].float().std()))

    def adopt_norm(self, weight: torch.Tensor) -> None:
        """Begins from the target's norm before its output matrix."""
        with torch.no_grad():
            self.norm.weight.copy_(weight)

    def forward(
        self,
        states: torch.Tensor,
        anchors: torch.Tensor,
        following: torch.Tensor,
        history: History | None = None,
    ) -> Guess:
        """What the head says along a text. ``states``: [B, L, H] at t; ``anchors``: int64 [B]; ``following``:
        int64 [B, K], the tokens at the places (the last one is not looked at); a K below the block's leaves
        out its last places.
        """
        places = following.shape[1]
        hidden = self.parallel(states, anchors, history, places)
        before = self.embed(torch.cat([anchors[:, None], following[:, :-1]], dim=1))
        if self.rnn is not None:
            state, ordered = self.rnn.start(len(hidden)), []
            for place in range(places):
                state, out = self.rnn.step(state, before[:, place], hidden[:, place])
                ordered.append(out)
            hidden = torch.stack(ordered, dim=1)
        normed = self.norm(hidden)
        doubt = self.doubt(hidden, before, self.temperature[:places])
        return Guess(normed, self._projected(normed), doubt)

    def parallel(
        self,
        states: torch.Tensor,
        anchors: torch.Tensor,
        history: History | None = None,
        places: int | None = None,
    ) -> torch.Tensor:
        """Hidden states of all places, or of the first ``places``, [B, K, H], before the recurrence."""
        features = self.features(states)
        past = None if history is None else self.features.deepest(history.states)
        known = None if history is None else history.known
        hidden: torch.Tensor = self.backbone(features, self.embed(anchors), past, known, places)
        return hidden

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The target's embeddings, in the head's type."""
        return nn.functional.embedding(tokens, self.embedding).to(self.norm.weight.dtype)

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits over the draft vocabulary, by the target's own matrix."""
        return self._projected(self.norm(hidden))

    def doubt(
        self, hidden: torch.Tensor, before: torch.Tensor, temperature: torch.Tensor
    ) -> torch.Tensor | None:
        """The logit of being accepted, calibrated, [...] of [..., H]; None without such a head."""
        if self.confidence is None:
            return None
        logit: torch.Tensor = self.confidence(torch.cat([hidden, before], dim=-1))
        return logit[..., 0] / temperature

    def _projected(self, normed: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(normed.to(self.projection.dtype), self.projection)

    def trained(self) -> dict[str, Any]:
        """What is saved: all tensors but the target's."""
        return dict(self.state_dict())
