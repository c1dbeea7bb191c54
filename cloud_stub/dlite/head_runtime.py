"""A head at work: blocks of tokens behind the target's last forward."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from acespec_edge import _core
from acespec_edge.errors import EngineError
from cloud_stub.dlite.checkpoint import load_head
from cloud_stub.dlite.model import DLiteHead, History
from cloud_stub.verifiers.base import Handle
from cloud_stub.verifiers.torch_verifier import TorchHandle, TorchVerifier


class HeadRuntime:
    """A ``Proposer`` by a DLite head: one pass of the backbone, then token by token through the recurrence,
    each place projected onto the vocabulary once.

    Tokens are drawn as the target's are, by the request's temperature and noise, but without what else its
    rules do to logits: those are for the target to keep. Memory and time of a block do not depend on the
    text. One thread, the scheduler's.
    """

    def __init__(self, head: DLiteHead, vocabulary: int) -> None:
        """``vocabulary``: ids that may be drawn."""
        self._head = head
        self._sampler = _core.Sampler(vocabulary)
        # Outside the draft vocabulary it stays at -inf.
        self._row = np.full(max(head.width, vocabulary), -np.inf, np.float32)
        self._ids = head.draft_ids.cpu().numpy()

    @classmethod
    def load(cls, folder: Path, verifier: TorchVerifier) -> HeadRuntime:
        """The head in ``folder``; ``verifier`` then watches the layers that it reads. Raises UsageError for a
        head of another target.
        """
        head = load_head(folder, verifier)
        verifier.watch(head.config.aux_layers)
        return cls(head, min(verifier.vocabulary.size, verifier.logits_width))

    @property
    def longest(self) -> int:
        """See ``Proposer.longest``."""
        return self._head.config.block

    def propose(
        self, handle: Handle, tip: int, position: int, rules: _core.SamplingRules, count: int, least: float
    ) -> list[int]:
        """See ``Proposer.propose``. Nothing when the handle has no features yet."""
        assert isinstance(handle, TorchHandle)
        if handle.features is None:
            return []
        return self.block(handle.features, tip, position, rules, count, least)

    @torch.inference_mode()
    def block(
        self,
        features: torch.Tensor,
        tip: int,
        position: int,
        rules: _core.SamplingRules,
        count: int,
        least: float = 0.0,
        history: History | None = None,
    ) -> list[int]:
        """The tokens that may follow ``tip``, which stands before ``position``. ``features``: [L, H], the
        target's states one token before the tip.
        """
        head = self._head
        device = head.draft_ids.device
        anchor = torch.tensor([tip], device=device)
        hidden = head.parallel(features[None], anchor, history)[0]
        state = None if head.rnn is None else head.rnn.start(1)
        tokens: list[int] = []
        survival = 1.0
        for place in range(min(count, head.config.block)):
            before = head.embed(anchor)
            out = hidden[place : place + 1]
            if head.rnn is not None and state is not None:
                state, out = head.rnn.step(state, before, out)
            doubt = head.doubt(out, before, head.temperature[place])
            if doubt is not None:
                survival *= float(torch.sigmoid(doubt))
                if survival < least:
                    break
            self._row[self._ids] = head.project(out)[0].float().cpu().numpy()
            try:
                token = self._sampler.choose(self._row, rules, position + place)
            except EngineError:  # a head that says nothing of use costs speed, not the request
                break
            tokens.append(token)
            anchor = torch.tensor([token], device=device)
        return tokens
