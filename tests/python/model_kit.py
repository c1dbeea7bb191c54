"""Tiny random models: as transformers saves them, and as GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.python.tokenizer_kit import SPECIAL, byte_level_json

_CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SIZES = {
    "vocab_size": 352,  # padded beyond the tokenizer
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def random_model(architecture: str, *, tied: bool = False, dtype: torch.dtype = torch.float32,
                 **config: Any) -> PreTrainedModel:  # fmt: skip
    """A model with random weights everywhere, norms and biases included."""
    kind, model = _CLASSES[architecture]
    torch.manual_seed(7)
    built: PreTrainedModel = model(
        kind(**{**SIZES, "tie_word_embeddings": tied, "rms_norm_eps": 1e-5, **config})
    )
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return built.to(dtype)


def save_folder(model: PreTrainedModel, folder: Path, **changes: Any) -> Path:
    """Saves the model and a tokenizer; `changes` go into config.json (None removes a key)."""
    model.save_pretrained(folder, max_shard_size=changes.pop("max_shard_size", "1GB"))
    (folder / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": None, "eos_token": {"content": SPECIAL}, "chat_template": "{{ messages }}"})
    )
    if changes:
        file = folder / "config.json"
        merged = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps({key: value for key, value in merged.items() if value is not None}))
    return folder


def tokenizer_fields(*, padding: int = 0) -> dict[str, Any]:
    """The byte-level tokenizer of the kit as GGUF metadata, `padding` unused entries behind it."""
    document = json.loads(byte_level_json())
    added = {entry["id"]: entry for entry in document["added_tokens"]}
    by_id = {token: content for content, token in document["model"]["vocab"].items()}
    by_id |= {token: entry["content"] for token, entry in added.items()}
    size = len(by_id)
    kinds = [1 if token not in added else 3 if added[token]["special"] else 4 for token in range(size)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in document["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [by_id[token] for token in range(size)]
        + [f"[PAD{i}]" for i in range(padding)],
        "tokenizer.ggml.token_type": kinds + [5] * padding,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": next(token for token, entry in added.items() if entry["special"]),
    }


def shape_fields(architecture: str, **changes: Any) -> dict[str, Any]:
    """The metadata of SIZES for `architecture`; `changes` by the part of the key behind it
    ("rope.freq_base")."""
    values = {
        "block_count": SIZES["num_hidden_layers"],
        "context_length": SIZES["max_position_embeddings"],
        "embedding_length": SIZES["hidden_size"],
        "feed_forward_length": SIZES["intermediate_size"],
        "attention.head_count": SIZES["num_attention_heads"],
        "attention.head_count_kv": SIZES["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        **changes,
    }
    named = {f"{architecture}.{key}": value for key, value in values.items() if value is not None}
    return {"general.architecture": architecture, "general.name": "Tiny", **named}


def random_tensors(
    architecture: str, *, head_dim: int = 16, tied: bool = False
) -> dict[str, NDArray[np.float32]]:
    """Random weights under the names that GGUF files use."""
    random = np.random.default_rng(7)
    hidden, inner, width = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["vocab_size"]
    query, key = SIZES["num_attention_heads"] * head_dim, SIZES["num_key_value_heads"] * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (width, hidden),
        "output_norm.weight": (hidden,),
    }
    if not tied:
        shapes["output.weight"] = (width, hidden)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,), "ffn_norm.weight": (hidden,), "attn_q.weight": (query, hidden),
        "attn_k.weight": (key, hidden), "attn_v.weight": (key, hidden), "attn_output.weight": (hidden, query),
        "ffn_gate.weight": (inner, hidden), "ffn_up.weight": (inner, hidden),
        "ffn_down.weight": (hidden, inner),
    }  # fmt: skip
    if architecture == "qwen2":
        layer |= {"attn_q.bias": (query,), "attn_k.bias": (key,), "attn_v.bias": (key,)}
    if architecture == "qwen3":
        layer |= {"attn_q_norm.weight": (head_dim,), "attn_k_norm.weight": (head_dim,)}
    for index in range(SIZES["num_hidden_layers"]):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    fields: dict[str, Any],
    tensors: dict[str, NDArray[Any]],
    kinds: dict[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """Writes a GGUF file; `kinds` names the tensors to quantise."""
    writer = gguf.GGUFWriter(path, fields["general.architecture"])
    for key, value in fields.items():
        if key == "general.architecture":
            continue
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            add = {
                str: writer.add_string,
                bool: writer.add_bool,
                int: writer.add_uint32,
                float: writer.add_float32,
            }
            add[type(value)](key, value)
    for name, values in tensors.items():
        kind = (kinds or {}).get(name)
        if kind is None:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
