"""Which target a head belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from acespec_edge.errors import UsageError
from cloud_stub.verifiers.torch_verifier import TorchVerifier

_ROWS: Final = 64
"""Numbers of a sketch."""

_TOLERANCE: Final = 0.15
"""Relative difference of two sketches of one model: rounding to four bits moves one by about 0.06, to 16 by
0.002; of two models they differ by about 1.4."""


@dataclass(frozen=True, slots=True)
class Identity:
    """``name``: for people. ``tokenizer``: its fingerprint, in hexadecimal. ``width``: columns of the logits.
    ``sketch``: sums over 64 rows of the embedding with signs that alternate irregularly, which tell models of
    one shape apart, whatever type they are loaded in.

    A model tuned from the one that a head was trained for may pass for it: it is close enough for the head to
    be of use, and what comes out is the target's own text in any case.
    """

    name: str
    tokenizer: str
    layers: int
    hidden: int
    width: int
    sketch: tuple[float, ...]

    @classmethod
    def of(cls, verifier: TorchVerifier) -> Identity:
        """That of a loaded target."""
        config = verifier.model.config.get_text_config()
        return cls(
            name=verifier.name,
            tokenizer=verifier.vocabulary.fingerprint.hex(),
            layers=int(config.num_hidden_layers),
            hidden=int(config.hidden_size),
            width=verifier.logits_width,
            sketch=sketch(verifier.model.get_input_embeddings().weight),
        )

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Identity:
        """The inverse of ``written``. Raises UsageError for fields that are missing or of another type."""
        try:
            values = {name: kind(fields[name]) for name, kind in _FIELDS.items()}
            numbers = tuple(float(number) for number in fields["sketch"])
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"the target of the head is not described: {error}") from error
        if len(numbers) != _ROWS:
            raise UsageError(f"sketch has {len(numbers)} numbers: {_ROWS} would be right")
        return cls(**values, sketch=numbers)

    def written(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"sketch": list(self.sketch)}

    def same(self, target: Identity) -> bool:
        """Whether ``target`` is the model that this describes, perhaps rounded otherwise."""
        alike = all(getattr(self, field) == getattr(target, field) for field in _SAME)
        return alike and difference(self.sketch, target.sketch) <= _TOLERANCE

    def check(self, target: Identity) -> None:
        """Raises UsageError, naming both, when ``target`` is not the model that this describes."""
        for field, what in _SAME.items():
            ours, theirs = getattr(self, field), getattr(target, field)
            if ours != theirs:
                raise self._refused(target, f"{what} {_short(ours)} there, {_short(theirs)} here")
        if not self.same(target):
            raise self._refused(target, "the shapes are alike, the weights are not")

    def _refused(self, target: Identity, why: str) -> UsageError:
        return UsageError(
            f"the DLite head was trained for {self.name}, and the target is {target.name}: {why}. "
            f"Serve {self.name}, or train a head for {target.name} (python -m tools.train_dlite)"
        )


def sketch(embedding: torch.Tensor) -> tuple[float, ...]:
    """64 numbers of an embedding, [vocabulary, hidden], from rows at equal distances."""
    rows = torch.linspace(0, len(embedding) - 1, _ROWS).long()
    columns = torch.arange(embedding.shape[1])
    signs = (columns * 2654435761 >> 16 & 1) * 2.0 - 1.0
    # Row by row off the device: an embedding may be large.
    sums = embedding.detach()[rows.to(embedding.device)].float().cpu() @ signs
    return tuple(round(float(value), 6) for value in sums)


def difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The distance of two sketches relative to the length of the first."""
    a, b = torch.tensor(one), torch.tensor(other)
    return float((a - b).norm() / a.norm().clamp_min(1e-9))


def _short(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)[:8]


_FIELDS: Final[dict[str, type]] = {"name": str, "tokenizer": str, "layers": int, "hidden": int, "width": int}
_SAME: Final = {
    "tokenizer": "the tokenizer's fingerprint is",
    "layers": "the number of layers is",
    "hidden": "the hidden size is",
    "width": "the width of the logits is",
}
