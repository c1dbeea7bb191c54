"""Small random models as transformers saves them, a tokenizer for them, and the graph run by onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TOKENS = 258  # the tokenizer's: 256 bytes, <bos>, <eos>
PADDED = 272  # the embedding's

_COMMON: dict[str, Any] = {
    "vocab_size": PADDED,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": None,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.0, 4.0],
    "long_factor": [8.0] * 8,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**_COMMON, tie_word_embeddings=False),
    "llama3_rope": lambda: transformers.LlamaConfig(
        **_COMMON, tie_word_embeddings=True, rope_parameters=_LLAMA3
    ),
    "qwen2": lambda: transformers.Qwen2Config(**_COMMON, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**_COMMON, tie_word_embeddings=True, head_dim=32),
    "phi3": lambda: transformers.Phi3Config(
        **_COMMON,
        sliding_window=6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    ),
    "phi3_longrope": lambda: transformers.Phi3Config(
        **_COMMON, original_max_position_embeddings=128, rope_parameters=_LONGROPE
    ),
    "smollm3": lambda: transformers.SmolLM3Config(
        **_COMMON, tie_word_embeddings=True, no_rope_layers=[1, 0, 1]
    ),
    "gemma2": lambda: transformers.Gemma2Config(
        **_COMMON,
        head_dim=32,
        query_pre_attn_scalar=24,
        sliding_window=6,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=5.0,
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **_COMMON,
        head_dim=32,
        query_pre_attn_scalar=24,
        sliding_window=6,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    ),
    "llama_ungrouped": lambda: transformers.LlamaConfig(**(_COMMON | {"num_key_value_heads": 4})),
}


def tokenizer_json() -> str:
    """A byte-level tokenizer without merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    return str(tokenizer.to_str())


def save_random_model(kind: str, folder: Path) -> transformers.PreTrainedModel:
    """Saves a model of `kind` (a key of CONFIGS) with every parameter random, and returns it."""
    torch.manual_seed(7)
    config = CONFIGS[kind]()
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 1.5 / parameter.shape[1] ** 0.5)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, 0.5)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    return model


class GraphRunner:
    """A bundle's graph under onnxruntime, with a ring of `slots` rows written in place."""

    def __init__(self, bundle: Path, slots: int = 128) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            bundle / "model.onnx", options, providers=["CPUExecutionProvider"]
        )
        past = [entry for entry in self.session.get_inputs() if entry.name.startswith("past_")]
        # Far off any real key: a slot that nobody wrote must not matter.
        kind = np.float16 if past[0].type == "tensor(float16)" else np.float32
        self.ring = {entry.name: np.full((slots, entry.shape[1]), 50.0, kind) for entry in past}
        self.width = self.session.get_outputs()[0].shape[1]
        self.windowed = any(entry.name == "slot_positions" for entry in self.session.get_inputs())
        self.slot_positions = np.zeros(slots, np.int64)

    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        sees: Sequence[Sequence[int]],
        rows: Sequence[int] | None = None,
        visible: int = 64,
    ) -> NDArray[np.float32]:
        """Logits [R, width] of `rows` (default all). `sees[t]` lists the slots that row t attends to."""
        bias = np.full((len(tokens), visible), -np.inf, np.float32)
        for row, seen in enumerate(sees):
            bias[row, list(seen)] = 0
        wanted = np.arange(len(tokens)) if rows is None else np.asarray(rows)
        logits = np.empty((len(wanted), self.width), np.float32)
        feeds = {
            "input_ids": np.array([tokens], np.int64),
            "position_ids": np.array([positions], np.int64),
            "kv_slots": np.array(slots, np.int64),
            "attention_bias": bias,
            "rows": wanted.astype(np.int64),
        }
        self.slot_positions[list(slots)] = positions
        if self.windowed:
            feeds["slot_positions"] = self.slot_positions[:visible]
        binding = self.session.io_binding()
        for name, array in feeds.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name, ring in self.ring.items():
            shape, address = (visible, ring.shape[1]), ring.ctypes.data
            binding.bind_input(name, "cpu", 0, ring.dtype, shape, address)
            binding.bind_output(name.replace("past", "present"), "cpu", 0, ring.dtype, shape, address)
        binding.bind_output("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
        self.session.run_with_iobinding(binding)
        return logits

    def prefill(
        self, tokens: Sequence[int], start: int = 0, slots: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """Causal forward of tokens[start:], the others being there already; token i lies in slots[i] (i)."""
        place = list(range(len(tokens))) if slots is None else list(slots)
        span = range(start, len(tokens))
        return self.forward(
            tokens[start:], list(span), place[start:], [place[: index + 1] for index in span],
            visible=-(-(max(place) + 1) // 64) * 64,
        )  # fmt: skip
