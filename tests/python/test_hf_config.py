"""Config.json of each family: what is read from it, in its old and new spellings, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.errors import UsageError
from acespec_edge.export.architecture import ModelSpec
from acespec_edge.export.build import export_bundle
from acespec_edge.export.hf_config import HfConfig, TensorFacts
from acespec_edge.export.sources import open_source
from acespec_edge.ort_library import ort_library
from tests.python.small_models import GraphRunner, save_random_model

_SIZES = {
    "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "max_position_embeddings": 512,
}  # fmt: skip


def read(kind: str, **entries: Any) -> ModelSpec:
    config = HfConfig(Path("m"), {"model_type": kind, **_SIZES, **entries})
    return config.spec(TensorFacts(250, 256, has_head=False, qkv_bias=False, qk_norm=False))


def test_gemma_2_alternates_windows_and_caps_scores() -> None:
    spec = read(
        "gemma2", sliding_window=32, head_dim=24, query_pre_attn_scalar=36, attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    )  # fmt: skip
    assert spec.windows == (32, 0) * 4
    assert (spec.attention_softcap, spec.final_softcap, spec.attention_scale) == (50.0, 30.0, 1 / 6)
    assert (spec.embed_scale, spec.post_norms, spec.activation) == (8.0, True, "gelu_tanh")
    assert (spec.tied_head, spec.window_rope_theta) == (True, None)


def test_gemma_3_in_its_old_and_new_spelling() -> None:
    old = read(
        "gemma3_text", sliding_window=32, sliding_window_pattern=4, rope_theta=5e5,
        rope_local_base_freq=2e4,
    )  # fmt: skip
    rope = {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 2e4}}
    kinds = ["full_attention" if index % 4 == 3 else "sliding_attention" for index in range(8)]
    new = read("gemma3_text", sliding_window=32, layer_types=kinds, rope_parameters=rope)
    assert old == new
    assert (old.rope_theta, old.window_rope_theta, old.windows) == (5e5, 2e4, (32, 32, 32, 0) * 2)
    assert read("gemma3_text", sliding_window=32).windows == (32,) * 5 + (0,) + (32,) * 2


def test_smollm3_leaves_every_fourth_layer_without_positions() -> None:
    assert read("smollm3").unrotated == (3, 7)
    assert read("smollm3", no_rope_layers=[1, 1, 0, 1, 1, 1, 1, 0]).unrotated == (2, 7)
    assert read("smollm3", sliding_window=32).windows == ()
    windowed = read("smollm3", sliding_window=32, use_sliding_window=True)
    assert windowed.windows == (0, 0, 0, 32) * 2


def test_phi_3_of_a_long_context_is_read_up_to_its_original_one() -> None:
    factors = [1.0, 1.5, 2.0, 3.0]
    spec = read(
        "phi3", rope_scaling={"type": "longrope", "short_factor": factors, "long_factor": [9.0] * 4},
        partial_rotary_factor=0.5, original_max_position_embeddings=128,
    )  # fmt: skip
    assert (spec.max_positions, spec.rope_factors, spec.rotary_dim) == (128, tuple(factors), 8)
    assert spec.rope_magnitude == pytest.approx(math.sqrt(1 + math.log(4) / math.log(128)))
    plain = read("phi3", sliding_window=32)
    assert (plain.max_positions, plain.windows, plain.partial_rotary) == (512, (32,) * 8, None)


@pytest.mark.parametrize(
    ("kind", "entries", "words"),
    [
        ("gemma3", {}, "model with images.*gemma3_text"),
        ("gemma2", {"hidden_activation": "relu"}, "hidden_activation is 'relu'; only 'gelu_pytorch_tanh'"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "attention_softcap: -1.0 must be above zero"),
        ("gemma2", {"sliding_window": "wide"}, "sliding_window is 'wide'"),
        ("gemma2", {"sliding_window": 8, "layer_types": ["full_attention"]}, "each of the 8 layers"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers has 1 entries.* 8 layers"),
        ("phi3", {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 128},
         "'longrope' lacks 'short_factor'"),
        ("phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]},
                  "original_max_position_embeddings": 128}, "rope_factors: 1 values"),
        ("phi3", {"partial_rotary_factor": 0.3125}, "partial_rotary: 5 must be even"),
        ("phi3", {"rope_scaling": {"type": "llama3"}}, "'llama3' is not supported"),
    ],
)  # fmt: skip
def test_what_cannot_be_reproduced_is_refused(kind: str, entries: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read(kind, **entries)


def test_the_native_engine_keeps_windows_over_moving_slots(tmp_path: Path) -> None:
    """Rows in forwards of their own, in slots out of order and used before: each sees its window only."""
    save_random_model("gemma2", tmp_path / "model")
    bundle = Bundle.load(export_bundle(open_source(tmp_path / "model"), tmp_path / "bundle", "fp32"))
    engine = _core.OrtEngine(str(bundle.model_file), ort_library(), slots=128, vocabulary=bundle.vocabulary)
    tokens = [(13 * index * index + 5) % 250 for index in range(24)]
    reference = GraphRunner(bundle.path).prefill(tokens)
    for turn in range(2):
        slots = [(29 * index + 11 * turn) % 61 for index in range(24)]
        for index, token in enumerate(tokens):
            bias = np.full((1, 64), -np.inf, np.float32)
            bias[0, slots[: index + 1]] = 0
            row = engine.forward([token], [index], [slots[index]], bias, [0])
            assert np.abs(row[0] - reference[index]).max() < 1e-3
