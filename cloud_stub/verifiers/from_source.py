"""A transformers model with the weights of an opened ``Source`` (GGUF files), dequantised into plain
matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from acespec_edge.errors import UsageError
from acespec_edge.export import architecture as names
from acespec_edge.export.architecture import ModelSpec, Source, layer_tensor
from acespec_edge.export.rotary import rotary_frequencies

_LAYER_WEIGHTS = {
    names.ATTN_NORM: "input_layernorm.weight",
    names.Q: "self_attn.q_proj.weight",
    names.K: "self_attn.k_proj.weight",
    names.V: "self_attn.v_proj.weight",
    names.O: "self_attn.o_proj.weight",
    names.MLP_NORM: "post_attention_layernorm.weight",
    names.GATE: "mlp.gate_proj.weight",
    names.UP: "mlp.up_proj.weight",
    names.DOWN: "mlp.down_proj.weight",
}
_BIASES = {
    names.Q_BIAS: "self_attn.q_proj.bias",
    names.K_BIAS: "self_attn.k_proj.bias",
    names.V_BIAS: "self_attn.v_proj.bias",
}
_HEAD_NORMS = {names.Q_NORM: "self_attn.q_norm.weight", names.K_NORM: "self_attn.k_norm.weight"}
_SUPPORTED = "llama without biases, qwen2 with biases of q, k and v, and qwen3 with norms of q and k"


def build_model(source: Source, dtype: torch.dtype) -> PreTrainedModel:
    """The model on the CPU, in ``dtype``. Raises UsageError when the source lacks a tensor, or has one for
    which the architecture has no place.
    """
    spec = source.spec
    factory: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = factory.from_config(_config(spec), attn_implementation="sdpa", trust_remote_code=False)
    weights = {name: torch.from_numpy(values).to(dtype) for name, values in _weights(source)}
    left_over = model.load_state_dict(weights, strict=False, assign=True).unexpected_keys
    if spec.tied_head:
        model.lm_head.weight = model.model.embed_tokens.weight
    rotary = type(model.model.rotary_emb)(config=model.config)
    rotary.inv_freq = torch.from_numpy(rotary_frequencies(spec))
    model.model.rotary_emb = rotary
    missing = [name for name, value in model.state_dict().items() if value.is_meta]
    for problem, tensors in (("lacks", missing), ("has no place for", left_over)):
        if tensors:
            raise UsageError(
                f"{source.name}: a {spec.architecture} model of this source {problem} {tensors[0]} "
                f"({len(tensors)} such tensors); what can be served is {_SUPPORTED}"
            )
    built: PreTrainedModel = model
    return built


def _config(spec: ModelSpec) -> PreTrainedConfig:
    values: dict[str, object] = {
        "vocab_size": spec.logits_width,
        "hidden_size": spec.hidden,
        "intermediate_size": spec.intermediate,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_positions,
        "rms_norm_eps": spec.rms_eps,
        "tie_word_embeddings": spec.tied_head,
    }
    if spec.architecture != "qwen2":
        values["attention_bias"] = spec.qkv_bias
    return AutoConfig.for_model(spec.architecture, **values)


def _weights(source: Source) -> Iterator[tuple[str, NDArray[np.float32]]]:
    spec = source.spec
    yield "model.embed_tokens.weight", source.tensor(names.EMBED)
    yield "model.norm.weight", source.tensor(names.FINAL_NORM)
    if not spec.tied_head:
        yield "lm_head.weight", source.tensor(names.HEAD)
    table = _LAYER_WEIGHTS | (_BIASES if spec.qkv_bias else {}) | (_HEAD_NORMS if spec.qk_norm else {})
    for layer in range(spec.layers):
        for ours, theirs in table.items():
            yield f"model.layers.{layer}.{theirs}", source.tensor(layer_tensor(layer, ours))
