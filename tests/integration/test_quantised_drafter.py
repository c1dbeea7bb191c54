"""A drafter of 4 bits that errs where the target does not: the text is the target's all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.export.build import export_bundle
from acespec_edge.export.sources import open_source
from cloud_stub.local import LocalLink
from cloud_stub.service import Service
from cloud_stub.verifiers.loading import load_verifier
from tests.python.small_models import GraphRunner, save_random_model

PROMPT = [256, 17, 3, 99, 200, 45, 45, 131]
COUNT = 40


@torch.inference_mode()
def plainly(model: torch.nn.Module, vocabulary: int) -> list[int]:
    ids = list(PROMPT)
    while len(ids) < len(PROMPT) + COUNT:
        row = model(torch.tensor([ids]), use_cache=False).logits[0, -1, :vocabulary]
        ids.append(int(row.argmax()))
    return ids[len(PROMPT) :]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_t1_a_drafter_whose_arg_maxes_flip_changes_no_token(tmp_path: Path, kind: str) -> None:
    save_random_model(kind, tmp_path)
    bundle = Bundle.load(export_bundle(open_source(tmp_path), tmp_path / "int4", "int4"))
    verifier = load_verifier(str(tmp_path), device="cpu", threads=1)
    alone = plainly(verifier.model, bundle.vocabulary)
    drafted = GraphRunner(bundle.path).prefill([*PROMPT, *alone])[len(PROMPT) - 1 : -1, : bundle.vocabulary]
    flipped = np.mean(drafted.argmax(axis=1) != alone)
    assert 0.02 < flipped < 0.8, "the drafter must err, and be of some use"
    with EdgeRuntime(bundle, lambda: LocalLink(Service(verifier)), cache_mb=1, context=128) as edge:
        result = edge.generate(PROMPT, max_tokens=COUNT)
    stop = next((place for place, token in enumerate(alone) if token in bundle.eos_ids), COUNT - 1)
    assert result.token_ids == alone[: stop + 1]
    assert result.stats.rounds > 0
