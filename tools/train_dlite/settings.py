"""What a head is trained with: one file for each target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from acespec_edge.errors import UsageError
from cloud_stub.dlite.config import HeadConfig, checked_fields

CONFIGS: Final = Path(__file__).resolve().parent / "configs"
LOSSES: Final = ("l1", "likelihood", "divergence")


@dataclass(frozen=True, slots=True)
class GenerateSettings:
    """How the target answers. ``max_tokens``: of an answer; ``batch``: prompts at a time."""

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    batch: int = 16
    seed: int = 1

    def __post_init__(self) -> None:
        _within("generate", self, max_tokens=(1, 1 << 16), batch=(1, 1024), seed=(0, 1 << 31))
        _within("generate", self, temperature=(0.0, 10.0), top_p=(1e-6, 1.0))


@dataclass(frozen=True, slots=True)
class CollectSettings:
    """``tokens``: of answers, altogether. ``max_tokens``: of an answer; ``batch``: texts at a time.
    ``greedy``: share of the answers that are decoded greedily, the others with ``temperature``; ``own``:
    share of the invented chats whose prompt the target writes itself; ``given``: share of the user's own
    prompts, if there are such. ``dtype``: of the target meanwhile; with
    instructions for bfloat16 a CPU is several times as fast in it.
    """

    tokens: int = 300_000
    max_tokens: int = 160
    batch: int = 64
    greedy: float = 0.67
    temperature: float = 0.8
    own: float = 0.6
    given: float = 0.7
    seed: int = 1
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        _within("collect", self, tokens=(1, 1 << 32), max_tokens=(2, 1 << 16), batch=(1, 1024))
        _within(
            "collect", self, greedy=(0.0, 1.0), temperature=(0.01, 10.0), own=(0.0, 1.0), given=(0.0, 1.0)
        )
        _within("collect", self, seed=(0, 1 << 31))


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """``max_length``: tokens of a text, prompt included; ``history``: positions kept before the answer, for a
    teacher. ``max_gb``: of hidden states on disk; texts that no longer fit are left out.
    """

    max_length: int = 768
    history: int = 512
    max_gb: float = 8.0

    def __post_init__(self) -> None:
        _within("cache", self, max_length=(4, 1 << 17), history=(0, 1 << 16), max_gb=(0.0, 4096.0))


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """``batch``: anchors of a step; ``anchors``: drawn from each text in each epoch. ``epochs``: of the three
    stages, of which any may be 0 (a warm-up needs a teacher). ``history``: tokens of the teacher's past.

    ``loss``: of the last stage, "l1" (||p - q||_1, twice the total variation, and ``cross_entropy`` times the
    cross-entropy), "likelihood" (KL at first, the total variation as acceptance grows) or "divergence" (KL,
    with p normalised within the draft vocabulary, so that only its rows of the output matrix are needed).
    ``feature``: times ``losses.feature_distance``, added to it. ``decay``: of the places' weights.
    ``places``: the first places of a block, which alone are trained until the last fifth of that stage, and
    cost less; 0 for all.
    ``start``: the target's layers that the head's begin as, or a head of the same shape, by its name or its
    folder, that is trained further; random weights when empty. ``autocast``: products
    of matrices in bfloat16, weights in single precision. ``held_out``: share of the texts for validation.
    Steps are counted within a stage.
    """

    batch: int = 32
    anchors: int = 16
    learning_rate: float = 1e-3
    warmup_steps: int = 50
    weight_decay: float = 0.01
    clip: float = 1.0
    epochs: tuple[int, ...] = (8, 2, 6)
    history: int = 512
    loss: str = "l1"
    cross_entropy: float = 0.1
    feature: float = 0.0
    decay: float = 4.0
    places: int = 0
    start: tuple[int, ...] | str = ()
    autocast: bool = False
    held_out: float = 0.05
    save_every: int = 200
    seed: int = 1

    def __post_init__(self) -> None:
        _within(
            "train", self, batch=(1, 65_536), anchors=(1, 4096), warmup_steps=(0, 1 << 20), clip=(1e-6, 1e6)
        )
        _within("train", self, learning_rate=(1e-9, 1.0), weight_decay=(0.0, 1.0), cross_entropy=(0.0, 100.0))
        _within("train", self, feature=(0.0, 1000.0), decay=(0.01, 1000.0), places=(0, 64))
        _within(
            "train",
            self,
            history=(0, 1 << 16),
            held_out=(0.0, 0.9),
            save_every=(1, 1 << 20),
            seed=(0, 1 << 31),
        )
        if self.loss not in LOSSES:
            raise UsageError(f"train.loss is {self.loss!r}: {' or '.join(LOSSES)} would be right")
        if len(self.epochs) != 3 or not all(0 <= count <= 10_000 for count in self.epochs):
            raise UsageError(
                f"train.epochs is {list(self.epochs)}: three numbers of 0 or more would be right"
            )
        if sum(self.epochs) == 0:
            raise UsageError("train.epochs is [0, 0, 0]: nothing would be trained")
        if self.epochs[1] and not self.epochs[0]:
            raise UsageError(
                f"train.epochs is {list(self.epochs)}: a warm-up learns from the teacher of the first stage, "
                "which has no epoch"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """``target``: as ``load_verifier`` takes it."""

    target: str
    model: HeadConfig
    generate: GenerateSettings = field(default_factory=GenerateSettings)
    collect: CollectSettings = field(default_factory=CollectSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    train: TrainSettings = field(default_factory=TrainSettings)

    def __post_init__(self) -> None:
        if self.train.history > self.cache.history and self.train.epochs[0]:
            raise UsageError(
                f"train.history is {self.train.history}: the cache keeps {self.cache.history} (cache.history)"
            )

        if self.train.loss == "divergence" and self.model.confidence:
            raise UsageError(
                'train.loss is "divergence": a confidence head learns from the whole distribution, l1 or '
                "likelihood would be right"
            )

    def training(self) -> dict[str, Any]:
        """What a training run depends on, but for its data."""
        return {"target": self.target, "model": asdict(self.model), "train": asdict(self.train)}


def read_settings(name: str, changes: Sequence[str] = ()) -> Settings:
    """From a JSON file, or one of the built-in configurations by its target's name. ``changes``: settings in
    place of the file's, as "train.seed=2", values in JSON. Raises UsageError naming what is wrong.
    """
    path = CONFIGS / f"{name}.json"
    if not path.is_file():
        path = Path(name)
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(sorted(file.stem for file in CONFIGS.glob("*.json")))
        raise UsageError(f"config is {name!r}: {error.strerror}; a JSON file, or one of {known}") from error
    except ValueError as error:
        raise UsageError(f"{path}: not JSON ({error})") from error
    parts = {
        "generate": GenerateSettings,
        "collect": CollectSettings,
        "cache": CacheSettings,
        "train": TrainSettings,
    }
    if not isinstance(given, dict) or not isinstance(given.get("target"), str):
        raise UsageError(f"{path}: target is missing")
    for part in ("model", *parts):
        if not isinstance(given.setdefault(part, {}), dict):
            raise UsageError(f"{path}: {part} is {given[part]!r}: an object would be right")
    for change in changes:
        _apply(given, change)
    unknown = sorted({*given} - {"target", "model", *parts})
    if unknown:
        raise UsageError(f"{path}: {unknown[0]} is not known: target, model, {', '.join(parts)} are")
    read: dict[str, Any] = {
        part: kind(**checked_fields(kind, given[part], part)) for part, kind in parts.items()
    }
    return Settings(given["target"], HeadConfig.from_fields(given["model"]), **read)


def _apply(given: dict[str, Any], change: str) -> None:
    name, equals, value = change.partition("=")
    part, _, field_name = name.partition(".")
    if not equals or not field_name or not isinstance(given.get(part), dict):
        raise UsageError(f"set is {change!r}: PART.NAME=VALUE would be right, as in train.seed=2")
    try:
        given[part][field_name] = json.loads(value)
    except ValueError:
        given[part][field_name] = value


def _within(part: str, values: Any, **bounds: tuple[float, float]) -> None:
    for name, (least, most) in bounds.items():
        value = getattr(values, name)
        if not least <= value <= most:
            raise UsageError(f"{part}.{name} is {value:g}: {least:g} to {most:g} would be right")
