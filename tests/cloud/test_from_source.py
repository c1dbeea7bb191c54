"""A model rebuilt from a ``Source``, as GGUF files are, against the model the weights came from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from acespec_edge.errors import UsageError
from acespec_edge.export.architecture import ModelSpec
from cloud_stub.verifiers.from_source import build_model
from tests.cloud.test_torch_verifier import SHAPE, make_model

OURS = {
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
} | {
    name + suffix: f"self_attn.{name}_proj.{theirs}"
    for name in "qkv"
    for suffix, theirs in (("", "weight"), ("_bias", "bias"))
}


@dataclass
class ModelSource:
    """The weights of a transformers model under the names of a ``Source``."""

    model: PreTrainedModel
    spec: ModelSpec
    name: str = "rebuilt"
    licence: str = ""
    origin: str = ""
    tokenizer_json: str = "{}"
    chat_template: str | None = None
    bos_id: int | None = None
    eos_ids: list[int] = field(default_factory=list)

    def tensor(self, name: str) -> NDArray[np.float32]:
        state = self.model.state_dict()
        outside = {
            "embed": "model.embed_tokens.weight",
            "final_norm": "model.norm.weight",
            "head": "lm_head.weight",
        }
        if name in outside:
            return state[outside[name]].numpy()
        _, layer, kind = name.split(".")
        key = f"model.layers.{layer}.{OURS[kind]}"
        if key not in state:
            raise UsageError(f"no tensor {name}")
        return state[key].numpy()


def spec_of(kind: str, model: PreTrainedModel, *, tied: bool = False, **changes: object) -> ModelSpec:
    spec = ModelSpec(
        architecture=kind,
        layers=2,
        hidden=32,
        heads=4,
        kv_heads=2,
        head_dim=model.config.head_dim if kind == "qwen3" else 8,
        intermediate=48,
        vocabulary=64,
        logits_width=SHAPE["vocab_size"],
        max_positions=512,
        rope_theta=model.config.rope_parameters["rope_theta"],
        rms_eps=model.config.rms_norm_eps,
        tied_head=tied,
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
    )
    return replace(spec, **changes)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_rebuilt_models_give_the_same_logits(kind: str, tied: bool) -> None:
    model = make_model(kind)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    rebuilt = build_model(ModelSource(model, spec_of(kind, model, tied=tied)), torch.float32)
    tokens = torch.arange(40)[None] % 64
    with torch.inference_mode():
        torch.testing.assert_close(rebuilt(tokens).logits, model(tokens).logits, atol=1e-5, rtol=0)


def test_rope_factors_slow_the_rotation() -> None:
    model = make_model("llama")
    spec = spec_of("llama", model, rope_factors=(1.0, 2.0, 4.0, 8.0))
    rebuilt = build_model(ModelSource(model, spec), torch.bfloat16)
    expected = model.model.rotary_emb.inv_freq / torch.tensor([1.0, 2.0, 4.0, 8.0])
    torch.testing.assert_close(rebuilt.model.rotary_emb.inv_freq, expected)
    assert rebuilt.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("architecture", "weights", "changes", "words"),
    [
        ("llama", "qwen2", {"qkv_bias": True}, "lacks model.layers.0.self_attn.o_proj.bias"),
        ("qwen2", "qwen2", {"qkv_bias": False}, "lacks model.layers.0.self_attn.q_proj.bias"),
        ("llama", "qwen3", {"qk_norm": True}, "no place for model.layers.0.self_attn.q_norm.weight"),
    ],
)
def test_tensors_too_few_and_too_many_are_named(
    architecture: str, weights: str, changes: dict[str, object], words: str
) -> None:
    model = make_model(weights)
    spec = spec_of(architecture, model, head_dim=spec_of(weights, model).head_dim, **changes)
    with pytest.raises(UsageError, match=words) as refused:
        build_model(ModelSource(model, spec), torch.float32)
    assert "qwen2 with biases" in str(refused.value)
