"""What a decoder is made of: sizes, switches and the canonical names of its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from acespec_edge.errors import UsageError

ARCHITECTURES = ("llama", "qwen2", "qwen3")

# Canonical names of the tensors outside the layers. Matrices are float32 [out, in] (torch layout),
# vectors [size].
EMBED = "embed"  # [logits_width, hidden]
FINAL_NORM = "final_norm"  # [hidden]
HEAD = "head"  # [logits_width, hidden]; absent when the head is tied to the embedding

# Canonical names of a layer's tensors, the part after "layers.{i}.".
ATTN_NORM = "attn_norm"  # [hidden]
Q = "q"  # [heads * head_dim, hidden]
K = "k"  # [kv_heads * head_dim, hidden]
V = "v"  # [kv_heads * head_dim, hidden]
O = "o"  # noqa: E741  [hidden, heads * head_dim]
Q_BIAS = "q_bias"  # [heads * head_dim]; with qkv_bias
K_BIAS = "k_bias"  # [kv_heads * head_dim]; with qkv_bias
V_BIAS = "v_bias"  # [kv_heads * head_dim]; with qkv_bias
Q_NORM = "q_norm"  # [head_dim]; with qk_norm
K_NORM = "k_norm"  # [head_dim]; with qk_norm
MLP_NORM = "mlp_norm"  # [hidden]
GATE = "gate"  # [intermediate, hidden]
UP = "up"  # [intermediate, hidden]
DOWN = "down"  # [hidden, intermediate]


def layer_tensor(layer: int, name: str) -> str:
    """The canonical name of tensor `name` (e.g. "q") of layer `layer`: "layers.3.q"."""
    return f"layers.{layer}.{name}"


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3's rotary frequency scaling, the fields of a Hugging Face `rope_scaling` of type "llama3"."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer: RMS norms before attention and a gated SiLU MLP, rotary positions, grouped
    heads.

    Query and key rows are in rotate-half order: rows i and i + head_dim / 2 of a head turn together.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int  # drawable ids: entries of the tokenizer
    logits_width: int  # rows of the embedding, and columns of a logit row; at least `vocabulary`
    max_positions: int
    rope_theta: float
    rms_eps: float
    tied_head: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    rope_scaling: Llama3Scaling | None = None
    rope_factors: tuple[float, ...] | None = None  # head_dim / 2 divisors of the frequencies

    @property
    def kv_width(self) -> int:
        """Floats of one key (or value) row of one layer."""
        return self.kv_heads * self.head_dim

    @property
    def q_width(self) -> int:
        """Floats of one query row of one layer."""
        return self.heads * self.head_dim

    def validate(self) -> None:
        """Raises UsageError naming the first field that cannot be right."""
        if self.architecture not in ARCHITECTURES:
            raise UsageError(
                f"architecture: {self.architecture!r} is not supported; it must be one of "
                f"{', '.join(ARCHITECTURES)}"
            )
        for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocabulary",
                      "logits_width", "max_positions", "rope_theta", "rms_eps"):  # fmt: skip
            value = getattr(self, field)
            if not value > 0:
                raise UsageError(f"{field}: {value!r} must be above zero")
        if self.heads % self.kv_heads:
            raise UsageError(f"kv_heads: {self.kv_heads} must divide heads ({self.heads})")
        if self.head_dim % 2:
            raise UsageError(f"head_dim: {self.head_dim} must be even, rotary positions turn pairs")
        if self.logits_width < self.vocabulary:
            raise UsageError(
                f"logits_width: {self.logits_width} is less than the vocabulary ({self.vocabulary})"
            )
        if self.rope_scaling is not None and self.rope_factors is not None:
            raise UsageError("rope_factors: must be absent when rope_scaling is given; both say the same")
        if self.rope_factors is not None and len(self.rope_factors) != self.head_dim // 2:
            raise UsageError(
                f"rope_factors: {len(self.rope_factors)} values, it must have head_dim / 2, "
                f"that is {self.head_dim // 2}"
            )


@runtime_checkable
class Source(Protocol):
    """An opened model: its shape, its weights and its tokenizer, whatever the file format."""

    spec: ModelSpec
    name: str
    licence: str
    origin: str  # where it came from: a path, or an id and revision
    tokenizer_json: str
    chat_template: str | None
    bos_id: int | None
    eos_ids: list[int]

    def tensor(self, name: str) -> NDArray[np.float32]:
        """The tensor of canonical `name`. Raises UsageError when the file lacks it."""
        ...
