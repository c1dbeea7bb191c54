"""A tiny target, and heads for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cloud_stub.dlite.checkpoint import new_head
from cloud_stub.dlite.config import HeadConfig
from cloud_stub.dlite.identity import Identity
from cloud_stub.dlite.model import DLiteHead
from cloud_stub.verifiers.torch_verifier import TorchVerifier
from tests.cloud.rig import tiny_vocabulary
from tests.cloud.test_torch_verifier import PADDED, SIZE, make_model
from tools.train_dlite.batches import Texts
from tools.train_dlite.settings import Settings, read_settings
from tools.train_dlite.states import fill, plan
from tools.train_dlite.texts import Text

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


CLOCK_SIZE = 16


def following(token: int) -> int:
    """What the clock target says after ``token``: a permutation with one cycle."""
    return (5 * token + 3) % CLOCK_SIZE


def make_clock() -> TorchVerifier:
    """A target made by hand: every layer leaves the embedding as it is, a unit vector for each token, so that
    hidden states name the token they belong to, and the next token follows from the last.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=CLOCK_SIZE,
        hidden_size=CLOCK_SIZE,
        intermediate_size=8,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(CLOCK_SIZE))
        model.lm_head.weight.zero_()
        for token in range(CLOCK_SIZE):
            model.lm_head.weight[following(token), token] = 4.0
    return TorchVerifier(model, tiny_vocabulary(CLOCK_SIZE), name="clock")


CONFIG: dict[str, Any] = {
    "target": "clock",
    "model": {
        "aux_layers": [0, 2],
        "layers": 1,
        "heads": 2,
        "head_dim": 8,
        "intermediate": 32,
        "rank": 8,
        "draft_vocabulary": CLOCK_SIZE,
        "block": 3,
    },
    "cache": {"max_length": 64, "history": 4},
    "train": {
        "batch": 8,
        "anchors": 6,
        "epochs": [1, 1, 1],
        "history": 4,
        "held_out": 0.2,
        "save_every": 3,
        "warmup_steps": 2,
    },
}


def configured(folder: Path, *changes: str) -> Settings:
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG))
    return read_settings(str(path), changes)


def random_texts(count: int = 10, size: int = CLOCK_SIZE) -> list[Text]:
    """Texts that no target wrote, so that what stands one place off is something else."""
    rng = np.random.default_rng(3)
    return [
        Text(
            f"t{n}",
            "chat",
            rng.integers(0, size, 2 + n % 5).tolist(),
            rng.integers(0, size, 12 + 3 * n % 7).tolist(),
        )
        for n in range(count)
    ]


def cached(verifier: TorchVerifier, texts: list[Text], settings: Settings, out: Path) -> Texts:
    identity = Identity.of(verifier)
    index, tokens = plan(texts, identity, settings.model.aux_layers, settings.cache, verifier.max_context)
    fill(verifier, index, tokens, out, lambda _: None)
    return Texts(out, settings.model.block)
