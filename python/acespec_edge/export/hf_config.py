"""What a Hugging Face config.json says of a decoder, family by family."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acespec_edge.errors import UsageError
from acespec_edge.export import architecture as arch
from acespec_edge.export.architecture import Llama3Scaling, ModelSpec

_GEMMA = ("gemma2", "gemma3_text")


@dataclass(frozen=True)
class TensorFacts:
    """What only the weights tell of a model's shape."""

    vocabulary: int  # of the tokenizer
    logits_width: int  # rows of the embedding
    has_head: bool
    qkv_bias: bool
    qk_norm: bool


class HfConfig:
    """The config.json of a model of a supported type. Every wrong or unsupported entry is a UsageError that
    names file, entry and value. Immutable, safe to share."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self._folder = folder
        self._config = config
        kind = config.get("model_type")
        if kind == "gemma3":
            raise UsageError(
                f"{folder}: model_type 'gemma3' is the model with images; only its text decoder can draft: "
                "save that alone, as model_type 'gemma3_text'"
            )
        if kind not in arch.ARCHITECTURES:
            raise UsageError(
                f"{folder}: model_type {kind!r} is not supported; it must be one of "
                + ", ".join(arch.ARCHITECTURES)
            )
        self.kind: str = kind
        if "quantization_config" in config:
            method = config["quantization_config"].get("quant_method", "unknown")
            raise UsageError(
                f"{folder}: the checkpoint is quantised ({method}); export from the original weights, "
                "--target quantises them"
            )
        self._must_be(
            *(("hidden_activation", "gelu_pytorch_tanh") if self.is_gemma else ("hidden_act", "silu"))
        )
        if kind in ("qwen2", "qwen3"):
            self._must_be("use_sliding_window", False)

    @property
    def is_gemma(self) -> bool:
        """Whether norms compute with 1 + w."""
        return self.kind in _GEMMA

    def spec(self, tensors: TensorFacts) -> ModelSpec:
        """The decoder's shape and switches."""
        hidden, heads = self._number("hidden_size"), self._number("num_attention_heads")
        head_dim = self._number("head_dim", 256 if self.is_gemma else hidden // heads)
        rope, window_rope = self._rotary()
        spec = ModelSpec(
            architecture=self.kind,
            layers=self._number("num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=self._number("num_key_value_heads", heads),
            head_dim=head_dim,
            intermediate=self._number("intermediate_size"),
            vocabulary=tensors.vocabulary,
            logits_width=tensors.logits_width,
            max_positions=self._max_positions(rope),
            rope_theta=self._theta(rope),
            rms_eps=float(self._config.get("rms_norm_eps", 1e-6)),
            tied_head=self._is_tied(tensors.has_head),
            qkv_bias=tensors.qkv_bias,
            qk_norm=tensors.qk_norm,
            rope_scaling=self._llama3(rope),
            windows=self._windows(),
            **self._phi3(rope, head_dim),
            **self._gemma(hidden, head_dim, window_rope),
            unrotated=self._unrotated() if self.kind == "smollm3" else (),
        )
        spec.validate()
        return spec

    def _rotary(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The rotary entries of layers that see all, and of layers with a window."""
        rope = self._config.get("rope_parameters") or self._config.get("rope_scaling") or {}
        if "full_attention" in rope:
            return rope["full_attention"], rope.get("sliding_attention", {})
        return rope, {"rope_theta": self._config.get("rope_local_base_freq")}

    def _theta(self, rope: dict[str, Any]) -> float:
        usual = {"gemma3_text": 1000000.0, "smollm3": 2000000.0}.get(self.kind, 10000.0)
        return float(rope.get("rope_theta") or self._config.get("rope_theta") or usual)

    def _rope_type(self, rope: dict[str, Any]) -> str:
        kind: str = rope.get("rope_type", rope.get("type", "default"))
        known = ("default", "longrope") if self.kind == "phi3" else ("default", "llama3")
        if kind not in known:
            raise UsageError(
                f"{self._folder}: rope scaling {kind!r} is not supported; only {known[0]!r} and "
                f"{known[1]!r} are"
            )
        return kind

    def _llama3(self, rope: dict[str, Any]) -> Llama3Scaling | None:
        if self._rope_type(rope) != "llama3":
            return None
        return Llama3Scaling(
            factor=float(self._scaling(rope, "factor")),
            low_freq_factor=float(self._scaling(rope, "low_freq_factor")),
            high_freq_factor=float(self._scaling(rope, "high_freq_factor")),
            original_max_positions=int(self._scaling(rope, "original_max_position_embeddings")),
        )

    def _scaling(self, rope: dict[str, Any], key: str) -> Any:
        if key not in rope:
            kind = self._rope_type(rope)
            raise UsageError(f"{self._folder}: rope scaling {kind!r} lacks {key!r} in config.json")
        return rope[key]

    def _max_positions(self, rope: dict[str, Any]) -> int:
        """longrope turns all rows more slowly once a text is longer than the original context, the keys in
        the ring too, which were turned already: a bundle ends there."""
        if self._rope_type(rope) == "longrope":
            return self._original_positions(rope)
        return self._number("max_position_embeddings")

    def _original_positions(self, rope: dict[str, Any]) -> int:
        listed = rope.get("original_max_position_embeddings")
        return int(listed) if listed else self._number("original_max_position_embeddings")

    def _phi3(self, rope: dict[str, Any], head_dim: int) -> dict[str, Any]:
        """Rotary positions that turn a part of each head, and longrope: the factors of short texts, and
        rows grown by sqrt(1 + ln(stretch) / ln(original context))."""
        if self.kind != "phi3":
            return {}
        share = rope.get("partial_rotary_factor", self._config.get("partial_rotary_factor", 1.0))
        values: dict[str, Any] = {"partial_rotary": None if share == 1 else int(head_dim * share)}
        if self._rope_type(rope) != "longrope":
            return values
        original = self._original_positions(rope)
        stretch = rope.get("factor") or self._number("max_position_embeddings") / original
        magnitude = rope.get("attention_factor")
        if magnitude is None:
            magnitude = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
        factors = tuple(float(factor) for factor in self._scaling(rope, "short_factor"))
        return values | {"rope_factors": factors, "rope_magnitude": float(magnitude)}

    def _gemma(self, hidden: int, head_dim: int, window_rope: dict[str, Any]) -> dict[str, Any]:
        if not self.is_gemma:
            return {}
        if self._config.get("use_bidirectional_attention"):
            raise UsageError(
                f"{self._folder}/config.json: use_bidirectional_attention is true; a drafter looks back only"
            )
        values: dict[str, Any] = {
            "activation": "gelu_tanh",
            "post_norms": True,
            "embed_scale": float(hidden**0.5),
            "attention_scale": float(self._config.get("query_pre_attn_scalar") or head_dim) ** -0.5,
            "attention_softcap": self._config.get("attn_logit_softcapping"),
            "final_softcap": self._config.get("final_logit_softcapping"),
        }
        if self.kind == "gemma3_text":
            values["window_rope_theta"] = float(window_rope.get("rope_theta") or 10000.0)
        return values

    def _windows(self) -> tuple[int, ...]:
        """Sizes by layer. Phi-3 has one window in all layers, Gemma and SmolLM3 in those that are listed, or
        else in every second (Gemma 2) or all but every sixth (Gemma 3)."""
        size = self._config.get("sliding_window")
        if self.kind not in ("phi3", "smollm3", *_GEMMA) or size is None:
            return ()
        if self.kind == "smollm3" and not self._config.get("use_sliding_window", False):
            return ()
        layers, window = self._number("num_hidden_layers"), self._number("sliding_window")
        if self.kind == "phi3":
            return (window,) * layers
        kinds = self._config.get("layer_types")
        if kinds is None and self.kind == "smollm3":
            kinds = [
                "sliding_attention" if i in self._unrotated() else "full_attention" for i in range(layers)
            ]
        elif kinds is None:
            every = self._number("sliding_window_pattern", 2 if self.kind == "gemma2" else 6)
            kinds = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
        if len(kinds) != layers or set(kinds) - {"sliding_attention", "full_attention"}:
            raise UsageError(
                f"{self._folder}/config.json: layer_types must say sliding_attention or full_attention for "
                f"each of the {layers} layers"
            )
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)

    def _unrotated(self) -> tuple[int, ...]:
        """The layers without rotary positions: listed as 0, or every fourth."""
        layers = self._number("num_hidden_layers")
        listed = self._config.get("no_rope_layers")
        if listed is None:
            every = self._number("no_rope_layer_interval", 4)
            listed = [(i + 1) % every for i in range(layers)]
        if len(listed) != layers:
            raise UsageError(
                f"{self._folder}/config.json: no_rope_layers has {len(listed)} entries, it must have one for "
                f"each of the {layers} layers"
            )
        return tuple(index for index, rotated in enumerate(listed) if not rotated)

    def _is_tied(self, has_head: bool) -> bool:
        usual = True if self.is_gemma else not has_head
        tied = self._config.get("tie_word_embeddings", usual)
        if not tied and not has_head:
            raise UsageError(f"{self._folder}: tie_word_embeddings is false, but there is no lm_head.weight")
        return bool(tied)

    def _number(self, key: str, default: int | None = None) -> int:
        value = self._config.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or value <= 0:
            raise UsageError(f"{self._folder}/config.json: {key} is {value!r}, it must be a number above 0")
        return value

    def _must_be(self, key: str, wanted: str | bool) -> None:
        value = self._config.get(key, wanted)
        if value != wanted:
            raise UsageError(f"{self._folder}/config.json: {key} is {value!r}; only {wanted!r} is supported")
