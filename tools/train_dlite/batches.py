"""What a step of training sees: anchors in the texts of a cache, and what surrounds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from acespec_edge.errors import UsageError
from cloud_stub.dlite.identity import Identity
from cloud_stub.dlite.model import History
from tools.train_dlite.states import STATES, TOKENS, Entry, read_index

_NONE: Final = -1
"""A label of a place behind the end of the text."""

Anchor = tuple[int, int]
"""Number of a text, and the position of the anchor in it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Of B anchors, each at position a = t + 1 of its text.

    ``features``: [B, L, H], the chosen layers at t; ``anchors``: int64 [B], the tokens at a; ``labels``:
    int64 [B, K], the tokens at a + 1, ..., a + K, -1 behind the text's end; ``last``: [B, K, H], the last
    hidden states at a, ..., a + K - 1, from which the target chose the labels; ``history``: the last chosen
    layer at t - W, ..., t - 1.
    """

    features: torch.Tensor
    anchors: torch.Tensor
    labels: torch.Tensor
    last: torch.Tensor
    history: History | None

    def first(self, places: int) -> Batch:
        """Of the first ``places`` alone."""
        return replace(self, labels=self.labels[:, :places], last=self.last[:, :places])

    @property
    def following(self) -> torch.Tensor:
        """The labels as tokens that can be looked up."""
        return self.labels.clamp_min(0)

    @property
    def known(self) -> torch.Tensor:
        """Places that have a label, float [B, K]."""
        return (self.labels != _NONE).float()


class Texts:
    """A cache, opened for reading; its states stay on disk. Not thread-safe."""

    def __init__(self, folder: Path, block: int) -> None:
        """``block``: places of a proposal. Raises UsageError when the cache is not complete."""
        self.index = read_index(folder)
        self._block = block
        shape = self.index.shape
        self._states = np.memmap(folder / STATES, np.float16, "r", shape=shape)
        self._tokens = np.memmap(folder / TOKENS, np.int32, "r")

    @property
    def entries(self) -> list[Entry]:
        """The texts."""
        return self.index.entries

    def tokens(self, entry: Entry) -> npt.NDArray[np.int32]:
        """Prompt and answer, int32 [tokens]."""
        tokens: npt.NDArray[np.int32] = self._tokens[entry.token_row : entry.token_row + entry.tokens]
        return tokens

    def split(self, held_out: float) -> tuple[list[int], list[int]]:
        """Numbers of the texts to train on, and of those to validate with: every so manieth."""
        count = len(self.entries)
        every = round(1 / held_out) if held_out > 0 else count + 1
        held = [number for number in range(count) if number % every == every - 1]
        return [number for number in range(count) if number % every != every - 1], held

    def anchors(self, numbers: Sequence[int], count: int, rng: np.random.Generator) -> list[Anchor]:
        """``count`` positions drawn from the answer of each text, in any order. A position has at least one
        token behind it, and all that the assistant wrote but the last is drawn from, evenly.
        """
        drawn = []
        for number in numbers:
            entry = self.entries[number]
            places = np.arange(entry.answer, entry.tokens - 1)
            picked = rng.choice(places, size=min(count, len(places)), replace=False)
            drawn += [(number, int(place)) for place in picked]
        order = rng.permutation(len(drawn))
        return [drawn[place] for place in order]

    def batch(self, anchors: Sequence[Anchor], history: int, device: torch.device) -> Batch:
        """What surrounds ``anchors``. ``history``: W, 0 for none."""
        entries = [self.entries[number] for number, _ in anchors]
        places = np.array([place for _, place in anchors])
        # Row of position 0, were it kept.
        origins = np.array([entry.row - entry.first for entry in entries])
        firsts = np.array([entry.first for entry in entries])
        ends = np.array([entry.tokens for entry in entries])
        token_rows = np.array([entry.token_row for entry in entries])
        ahead = places[:, None] + np.arange(1, self._block + 1)
        inside = ahead < ends[:, None]
        within = np.minimum(ahead, ends[:, None] - 1)
        labels = np.where(inside, self._tokens[token_rows[:, None] + within], _NONE)
        layers = len(self.index.layers)
        return Batch(
            features=self._read(origins + places - 1, slice(0, layers), device),
            anchors=_ids(self._tokens[token_rows + places], device),
            labels=_ids(labels, device),
            last=self._read(origins[:, None] + within - 1, layers, device),
            history=self._history(origins, firsts, places - 1, history, device) if history else None,
        )

    def _history(
        self, origins: Any, firsts: Any, verified: Any, window: int, device: torch.device
    ) -> History:
        behind = verified[:, None] + np.arange(-window, 0)
        known = behind >= firsts[:, None]
        rows = origins[:, None] + np.maximum(behind, firsts[:, None])
        states = self._read(rows, len(self.index.layers) - 1, device)
        return History(states, torch.from_numpy(known).to(device))

    def _read(self, rows: Any, layers: int | slice, device: torch.device) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self._states[rows, layers])).to(device, torch.float32)


def frequent_ids(texts: Texts, numbers: Sequence[int], count: int, width: int) -> torch.Tensor | None:
    """The ``count`` tokens that the answers use most, int64, ascending; lower ids first among equals, and
    where there are not as many. None when that is all of them.
    """
    if count == width:
        return None
    uses = np.zeros(width, np.int64)
    for number in numbers:
        entry = texts.entries[number]
        uses += np.bincount(texts.tokens(entry)[entry.answer :], minlength=width)
    return torch.from_numpy(np.sort(np.argsort(-uses, kind="stable")[:count]))


def cut(anchors: Sequence[Anchor], size: int) -> Iterator[Sequence[Anchor]]:
    """In pieces of ``size``, the last of which may be smaller."""
    for first in range(0, len(anchors), size):
        yield anchors[first : first + size]


def check_cache(texts: Texts, layers: Sequence[int], target: Identity, history: int) -> None:
    """Raises UsageError when a cache does not go with what is to be trained. The target may be rounded
    otherwise than the one that the states are of.
    """
    index = texts.index
    if index.layers != list(layers):
        raise UsageError(f"the cache is of layers {index.layers}, model.aux_layers are {list(layers)}")
    theirs = Identity.read(index.target)
    if theirs.name != target.name or not theirs.same(target):
        raise UsageError(
            f"the cache is of {theirs.name}, the target is {target.name}, or other weights of it"
        )
    if index.history < history:
        raise UsageError(f"the cache keeps {index.history} positions of history, and {history} are needed")


def _ids(tokens: Any, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.asarray(tokens).astype(np.int64)).to(device)
