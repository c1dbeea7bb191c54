"""Where a training run stands, on disk: one file, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from acespec_edge.errors import UsageError

STATE: Final = "state.safetensors"
LOSSES: Final = "losses.jsonl"

_MOMENTS: Final = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True, slots=True)
class Place:
    """``stage``: 0 to 2, 3 at the end; ``step``: of the stage, the next to be made."""

    stage: int
    step: int


def digest(training: dict[str, Any]) -> str:
    """Of what a run depends on: a run goes on only where all of it is as it was."""
    return hashlib.sha256(json.dumps(training, sort_keys=True).encode()).hexdigest()


def save_state(
    folder: Path, place: Place, run: str, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Writes the weights and the optimizer's moments. ``run``: digest of what the run depends on."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{moment}.{name}"] = value
    partial = folder / (STATE + ".partial")
    kept = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(kept, partial, metadata={"run": run, **{k: str(v) for k, v in asdict(place).items()}})
    os.replace(partial, folder / STATE)


def load_state(folder: Path, run: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> Place | None:
    """Where the run in ``folder`` stands, its weights and moments loaded; None when there is none. Raises
    UsageError when it is another run's.
    """
    place = read_place(folder, run)
    if place is None:
        return None
    device = next(model.parameters()).device
    with safe_open(folder / STATE, framework="pt") as file:
        names = set(file.keys())
        model.load_state_dict({
            name.removeprefix("model."): file.get_tensor(name) for name in names if name.startswith("model.")
        })  # fmt: skip
        for name, parameter in model.named_parameters():
            if f"step.{name}" in names:
                optimizer.state[parameter] = {
                    moment: file.get_tensor(f"{moment}.{name}").to("cpu" if moment == "step" else device)
                    for moment in _MOMENTS
                }
    return place


def read_place(folder: Path, run: str) -> Place | None:
    """Where the run in ``folder`` stands; None when there is none. Raises UsageError when it is another's."""
    path = folder / STATE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            told = file.metadata() or {}
        place = Place(int(told["stage"]), int(told["step"]))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error
    if told.get("run") != run:
        raise UsageError(f"{folder}: holds a run with other settings or data; another folder is right")
    return place


class LossLog:
    """The losses of a run as JSON lines, one a step."""

    def __init__(self, folder: Path, place: Place) -> None:
        """Keeps what was logged before ``place``; what a lost part of the run logged goes."""
        self._path = folder / LOSSES
        kept = [row for row in read_losses(folder) if (row["stage"], row["step"]) < (place.stage, place.step)]
        partial = folder / (LOSSES + ".partial")
        partial.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        os.replace(partial, self._path)
        self._file = self._path.open("a", encoding="utf-8")

    def add(self, place: Place, **values: float) -> None:
        """Adds a step."""
        self._file.write(json.dumps({**asdict(place), **values}) + "\n")

    def flush(self) -> None:
        """Hands everything to the system."""
        self._file.flush()

    def close(self) -> None:
        """Ends the log."""
        self._file.close()


def read_losses(folder: Path) -> list[dict[str, Any]]:
    """The steps that were logged, but for a last line that was not finished."""
    path = folder / LOSSES
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
