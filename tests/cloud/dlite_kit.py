"""A tiny target, and heads for it."""

from __future__ import annotations

from typing import Any

import torch

from cloud_stub.dlite.checkpoint import new_head
from cloud_stub.dlite.config import HeadConfig
from cloud_stub.dlite.model import DLiteHead
from cloud_stub.verifiers.torch_verifier import TorchVerifier
from tests.cloud.rig import tiny_vocabulary
from tests.cloud.test_torch_verifier import PADDED, SIZE, make_model

SHAPE: dict[str, Any] = {
    "aux_layers": (0, 1),
    "layers": 2,
    "heads": 2,
    "head_dim": 16,
    "intermediate": 48,
    "rank": 8,
    "draft_vocabulary": PADDED,
    "block": 5,
}


def shape(**changes: Any) -> HeadConfig:
    return HeadConfig(**(SHAPE | changes))


def make_target(kind: str = "llama", name: str = "tiny") -> TorchVerifier:
    return TorchVerifier(make_model(kind), tiny_vocabulary(SIZE), name=name)


def make_head(target: TorchVerifier, *, trained: bool = True, seed: int = 5, **changes: Any) -> DLiteHead:
    """``trained``: with every parameter random, as if training had moved it."""
    torch.manual_seed(seed)
    config = shape(**changes)
    ids = torch.arange(config.draft_vocabulary) if config.draft_vocabulary < PADDED else None
    head = new_head(config, target, None if ids is None else ids * (SIZE // len(ids))).eval()
    if trained:
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return head
