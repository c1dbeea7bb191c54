"""What a decoder is made of: sizes, switches and the canonical names of its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from acespec_edge.errors import UsageError

ARCHITECTURES = ("llama", "qwen2", "qwen3", "phi3", "smollm3", "gemma2", "gemma3_text")

ACTIVATIONS = ("silu", "gelu_tanh")

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
POST_ATTN_NORM = "post_attn_norm"  # [hidden]; with post_norms
MLP_NORM = "mlp_norm"  # [hidden]
POST_MLP_NORM = "post_mlp_norm"  # [hidden]; with post_norms
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
    """A decoder-only transformer: RMS norms before attention and a gated MLP, rotary positions, grouped
    heads.

    Query and key rows are in rotate-half order: rows i and i + rotary_dim / 2 of a head turn together. Norms'
    gains multiply as they are: a source whose model computes with 1 + w gives 1 + w.
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
    rope_factors: tuple[float, ...] | None = None  # rotary_dim / 2 divisors of the frequencies
    rope_magnitude: float = 1.0  # of the rotated rows of queries and of keys
    partial_rotary: int | None = None  # leading rows of a head that turn; None: all
    unrotated: tuple[int, ...] = ()  # layers without rotary positions
    windows: tuple[int, ...] = ()  # by layer: positions a row sees, its own included; 0: all; (): 0 for all
    window_rope_theta: float | None = None  # of layers with a window, never scaled; None: as the others
    activation: str = "silu"
    post_norms: bool = False  # norms of what attention and MLP give, before it is added
    embed_scale: float = 1.0
    attention_scale: float | None = None  # None: head_dim ** -0.5
    attention_softcap: float | None = None  # scores become cap * tanh(score / cap)
    final_softcap: float | None = None  # logits likewise

    @property
    def kv_width(self) -> int:
        """Floats of one key (or value) row of one layer."""
        return self.kv_heads * self.head_dim

    @property
    def q_width(self) -> int:
        """Floats of one query row of one layer."""
        return self.heads * self.head_dim

    @property
    def rotary_dim(self) -> int:
        """Leading rows of a head that turn."""
        return self.partial_rotary or self.head_dim

    def window(self, layer: int) -> int:
        """Positions that a row of `layer` sees, its own included; 0 for all."""
        return self.windows[layer] if self.windows else 0

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
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.head_dim:
            raise UsageError(
                f"partial_rotary: {self.rotary_dim} must be even, and at most head_dim ({self.head_dim})"
            )
        if self.windows and (len(self.windows) != self.layers or min(self.windows) < 0):
            raise UsageError(
                f"windows: {self.windows} must have a size for each of the {self.layers} layers, "
                "0 for those that see all"
            )
        if self.activation not in ACTIVATIONS:
            raise UsageError(f"activation: {self.activation!r} must be one of {', '.join(ACTIVATIONS)}")
        for field in ("attention_scale", "attention_softcap", "final_softcap", "window_rope_theta"):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise UsageError(f"{field}: {value!r} must be above zero, or absent")
        if self.logits_width < self.vocabulary:
            raise UsageError(
                f"logits_width: {self.logits_width} is less than the vocabulary ({self.vocabulary})"
            )
        if self.rope_scaling is not None and self.rope_factors is not None:
            raise UsageError("rope_factors: must be absent when rope_scaling is given; both say the same")
        if self.rope_factors is not None and len(self.rope_factors) != self.rotary_dim // 2:
            raise UsageError(
                f"rope_factors: {len(self.rope_factors)} values, it must have one for each pair of "
                f"rows that turns, that is {self.rotary_dim // 2}"
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
