"""The shape of a head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, get_args, get_type_hints

from acespec_edge.errors import UsageError

BACKBONES: Final = ("full", "injected")

_BOUNDS: Final = {
    "block": (1, 64),
    "layers": (1, 32),
    "heads": (1, 128),
    "head_dim": (2, 512),
    "intermediate": (1, 65_536),
    "rank": (1, 4096),
    "draft_vocabulary": (1, 1 << 20),
}


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """``aux_layers``: the target's layers whose outputs are read, from 0. ``block``: tokens of a proposal.

    ``backbone``: "full" lets features, anchor and placeholders all attend to each other; "injected" has
    anchor and placeholders attend to the features as keys and values, which no layer transforms.
    ``layers``, ``heads``, ``head_dim``, ``intermediate``: of the backbone. ``rank``: of the recurrence.
    ``draft_vocabulary``: tokens that can be proposed. ``rnn``, ``depth``: False leaves out the recurrence,
    the depth embeddings; ``confidence`` adds a head that estimates what will be accepted.

    Raises UsageError for a shape that cannot be.
    """

    aux_layers: tuple[int, ...]
    layers: int
    heads: int
    head_dim: int
    intermediate: int
    rank: int
    draft_vocabulary: int
    block: int = 7
    backbone: str = "injected"
    rnn: bool = True
    depth: bool = True
    confidence: bool = False
    rms_eps: float = 1e-5
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise UsageError(f"{name} is {value}: {least:,} to {most:,} would be right")
        if self.backbone not in BACKBONES:
            raise UsageError(f"backbone is {self.backbone!r}: {' or '.join(BACKBONES)} would be right")
        if self.head_dim % 2:
            raise UsageError(f"head_dim is {self.head_dim}: an even number is needed, for rotary positions")
        if not self.aux_layers or list(self.aux_layers) != sorted({*self.aux_layers}):
            raise UsageError(f"aux_layers is {list(self.aux_layers)}: ascending layers would be right")
        if not (0 < self.rms_eps < 1 and self.rope_theta > 1):
            raise UsageError(f"rms_eps is {self.rms_eps}, rope_theta {self.rope_theta}: 1e-5, 1e4 are usual")

    def check_target(self, layers: int, width: int) -> None:
        """Raises UsageError when a target of ``layers`` layers and ``width`` logits is too small for it."""
        if self.aux_layers[0] < 0 or self.aux_layers[-1] >= layers:
            raise UsageError(f"aux_layers is {list(self.aux_layers)}: 0 to {layers - 1} are the target's")
        if self.draft_vocabulary > width:
            raise UsageError(f"draft_vocabulary is {self.draft_vocabulary}: the target has {width} tokens")

    @classmethod
    def from_fields(cls, given: Mapping[str, Any]) -> HeadConfig:
        """From plain values, as JSON has them. Raises UsageError for fields that are unknown, missing or of
        another type.
        """
        return cls(**checked_fields(cls, given, "model"))


def checked_fields(kind: Any, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The arguments of dataclass ``kind`` in ``given``, their types checked; lists become tuples of
    integers. Raises UsageError naming the field, as one of ``where``.
    """
    hints = get_type_hints(kind)
    unknown = sorted({*given} - {*hints})
    if unknown:
        raise UsageError(f"{where}.{unknown[0]} is not known: {', '.join(hints)} are")
    for field in fields(kind):
        if field.name not in given and field.default is field.default_factory:  # both MISSING
            raise UsageError(f"{where}.{field.name} is missing")
    return {name: _checked(f"{where}.{name}", value, hints[name]) for name, value in given.items()}


def _checked(name: str, value: Any, kind: Any) -> Any:
    if kind in (int, float, bool, str):
        wanted = (int, float) if kind is float else kind
        if not isinstance(value, wanted) or (kind is not bool and isinstance(value, bool)):
            raise UsageError(f"{name} is {value!r}: {kind.__name__} would be right")
        return float(value) if kind is float else value
    if isinstance(value, str) and str in get_args(kind):
        return value
    if not isinstance(value, list | tuple) or not all(type(part) is int for part in value):
        raise UsageError(f"{name} is {value!r}: a list of whole numbers would be right")
    return tuple(value)
