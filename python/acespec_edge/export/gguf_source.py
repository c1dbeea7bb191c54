"""A model in one GGUF file, as llama.cpp writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acespec_edge.errors import UsageError
from acespec_edge.export import architecture as arch
from acespec_edge.export.architecture import ModelSpec, layer_tensor
from acespec_edge.export.gguf_file import GgufFile
from acespec_edge.export.gguf_tokenizer import read_tokenizer
from acespec_edge.export.rotary import half_order

_OUTSIDE = {
    arch.EMBED: "token_embd.weight",
    arch.FINAL_NORM: "output_norm.weight",
    arch.HEAD: "output.weight",
}
_LAYER = {
    arch.ATTN_NORM: "attn_norm.weight",
    arch.Q: "attn_q.weight",
    arch.K: "attn_k.weight",
    arch.V: "attn_v.weight",
    arch.O: "attn_output.weight",
    arch.Q_BIAS: "attn_q.bias",
    arch.K_BIAS: "attn_k.bias",
    arch.V_BIAS: "attn_v.bias",
    arch.Q_NORM: "attn_q_norm.weight",
    arch.K_NORM: "attn_k_norm.weight",
    arch.MLP_NORM: "ffn_norm.weight",
    arch.GATE: "ffn_gate.weight",
    arch.UP: "ffn_up.weight",
    arch.DOWN: "ffn_down.weight",
}
_ARCHITECTURES = ("llama", "qwen2", "qwen3")
# What files of architecture "llama" hold with the rows that turn together side by side.
_ROTATED = (arch.Q, arch.K, arch.Q_BIAS, arch.K_BIAS)
_ROPE_FACTORS = "rope_freqs.weight"
# Rows of the embedding and the head that are compared, and up to which difference, relative to their size,
# they are one matrix: two roundings of one differ by a few percent, two matrices by more than their size.
_COMPARED_ROWS = 1024
_ONE_MATRIX = 0.15


class GgufSource:
    """A `Source` over a GGUF file of architecture llama, qwen2 or qwen3. Tensors are dequantised when asked
    for."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)
        metadata = self._file.metadata
        architecture = self._value("general.architecture")
        if architecture not in _ARCHITECTURES:
            raise UsageError(
                f"{path}: architecture {architecture!r} is not supported; it must be one of "
                f"{', '.join(_ARCHITECTURES)} (other models can be exported from a Hugging Face folder)"
            )
        self._prefix = architecture
        tokenizer = read_tokenizer(metadata, str(path))
        self.spec = self._read_spec(tokenizer.size)
        self._names = self._map_names()
        self.name: str = metadata.get("general.name") or path.stem
        self.licence: str = metadata.get("general.license") or "unknown"
        self.origin = str(path)
        self.tokenizer_json = tokenizer.json
        self.chat_template: str | None = metadata.get("tokenizer.chat_template")
        self.bos_id = tokenizer.bos_id
        self.eos_ids = tokenizer.eos_ids

    def tensor(self, name: str) -> NDArray[np.float32]:
        """The tensor of canonical `name`, in Hugging Face's row order. Raises UsageError when the file lacks
        it."""
        try:
            values = self._file.tensor(self._names[name])
        except KeyError:
            raise UsageError(f"{self._file.path}: the file has no tensor for {name!r}") from None
        part = name.rpartition(".")[2]
        if self._prefix == "llama" and part in _ROTATED:
            return half_order(values, self.spec.head_dim)
        return values

    def _read_spec(self, vocabulary: int) -> ModelSpec:
        hidden, heads = self._shape("embedding_length"), self._shape("attention.head_count")
        head_dim = self._shape("attention.key_length", hidden // heads)
        self._must_be("attention.value_length", head_dim)
        self._must_be("rope.dimension_count", head_dim)
        self._must_be("expert_count", 0)
        self._must_be("rope.scaling.type", "none")
        embedding = self._file.tensors.get(_OUTSIDE[arch.EMBED])
        if embedding is None:
            raise UsageError(f"{self._file.path}: the file has no tensor {_OUTSIDE[arch.EMBED]}")
        tensors = self._file.tensors
        factors = self._file.tensor(_ROPE_FACTORS) if _ROPE_FACTORS in tensors else None
        spec = ModelSpec(
            architecture=self._prefix,
            layers=self._shape("block_count"),
            hidden=hidden,
            heads=heads,
            kv_heads=self._shape("attention.head_count_kv", heads),
            head_dim=head_dim,
            intermediate=self._shape("feed_forward_length"),
            vocabulary=vocabulary,
            logits_width=embedding.shape[0],
            max_positions=self._shape("context_length"),
            rope_theta=float(self._value(f"{self._prefix}.rope.freq_base", 10000.0)),
            rms_eps=float(self._value(f"{self._prefix}.attention.layer_norm_rms_epsilon")),
            tied_head=_OUTSIDE[arch.HEAD] not in tensors or self._one_table(),
            qkv_bias="blk.0.attn_q.bias" in tensors,
            qk_norm="blk.0.attn_q_norm.weight" in tensors,
            rope_factors=None if factors is None else tuple(float(factor) for factor in factors),
        )
        spec.validate()
        return spec

    def _one_table(self) -> bool:
        """Whether the file holds a tied table twice, rounded in two ways. The head's is the finer one, as it
        is what llama.cpp gives more bits, and serves as both."""
        tables = (self._file.tensors[_OUTSIDE[part]].shape for part in (arch.EMBED, arch.HEAD))
        if len(set(tables)) > 1:
            return False
        embed = self._file.tensor(_OUTSIDE[arch.EMBED], _COMPARED_ROWS)
        head = self._file.tensor(_OUTSIDE[arch.HEAD], _COMPARED_ROWS)
        return bool(np.linalg.norm(embed - head) < _ONE_MATRIX * np.linalg.norm(head))

    def _map_names(self) -> dict[str, str]:
        names = dict(_OUTSIDE)
        for layer in range(self.spec.layers):
            names |= {layer_tensor(layer, ours): f"blk.{layer}.{theirs}" for ours, theirs in _LAYER.items()}
        names = {ours: theirs for ours, theirs in names.items() if theirs in self._file.tensors}
        if self.spec.tied_head and arch.HEAD in names:
            names[arch.EMBED] = names[arch.HEAD]
        known = {*names.values(), _ROPE_FACTORS, _OUTSIDE[arch.EMBED]}
        left_over = sorted(self._file.tensors.keys() - known)
        if left_over:
            raise UsageError(
                f"{self._file.path}: tensor {left_over[0]} has no place in a plain {self._prefix} "
                f"decoder, so the model cannot be reproduced ({len(left_over)} such tensors)"
            )
        return names

    def _value(self, key: str, default: Any = None) -> Any:
        value = self._file.metadata.get(key, default)
        if value is None:
            raise UsageError(f"{self._file.path}: the file has no {key}")
        return value

    def _shape(self, key: str, default: int | None = None) -> int:
        value = self._value(f"{self._prefix}.{key}", default)
        if not isinstance(value, int) or value <= 0:
            raise UsageError(
                f"{self._file.path}: {self._prefix}.{key} is {value!r}, it must be one number above 0"
            )
        return value

    def _must_be(self, key: str, wanted: int | str) -> None:
        value = self._file.metadata.get(f"{self._prefix}.{key}", wanted)
        if value != wanted:
            raise UsageError(
                f"{self._file.path}: {self._prefix}.{key} is {value!r}; only {wanted!r} is supported"
            )
