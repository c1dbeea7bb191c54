"""The target's hidden states along the texts, on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from acespec_edge.errors import UsageError
from cloud_stub.dlite.identity import Identity
from cloud_stub.verifiers.hidden_states import HiddenStates
from cloud_stub.verifiers.torch_verifier import TorchVerifier
from tools.train_dlite.settings import CacheSettings
from tools.train_dlite.texts import Text

INDEX: Final = "index.json"
TOKENS: Final = "tokens.i32"
STATES: Final = "states.f16"
DONE: Final = "done"

LARGEST: Final = 65504.0
"""The largest number of 16 bits: some models leave a few larger ones in single places."""

_SAVE_EVERY: Final = 16


@dataclass(frozen=True, slots=True)
class Entry:
    """One text of a cache. ``tokens``: how many; ``answer``: position of the first that the assistant wrote;
    ``first``: position of the first whose states are kept; ``token_row``, ``row``: where they lie.
    """

    id: str
    kind: str
    tokens: int
    answer: int
    first: int
    token_row: int
    row: int


@dataclass(frozen=True, slots=True)
class Index:
    """What a cache holds. ``layers``: the chosen ones; the states of a position are theirs, and the last
    hidden state behind the target's final norm. ``left_out``: texts that found no room, or are too short.
    """

    target: dict[str, Any]
    layers: list[int]
    history: int
    left_out: int
    entries: list[Entry]

    @property
    def rows(self) -> int:
        """Positions with states."""
        last = self.entries[-1]
        return last.row + last.tokens - last.first

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of all states."""
        return self.rows, len(self.layers) + 1, int(self.target["hidden"])


def plan(
    texts: Iterable[Text], target: Identity, layers: Sequence[int], settings: CacheSettings, max_context: int
) -> tuple[Index, list[list[int]]]:
    """What would be kept, and the tokens of it. Texts are cut to ``max_length``; those are left out that
    leave no two tokens of an answer, and those behind the first that does not fit in ``max_gb``. Raises
    UsageError when none is left.
    """
    entries: list[Entry] = []
    kept: list[list[int]] = []
    longest = min(settings.max_length, max_context)
    room = int(settings.max_gb * 1e9 / (2 * (len(layers) + 1) * target.hidden))
    left_out = rows = token_rows = 0
    full = False
    for text in texts:
        tokens = [*text.prompt, *text.response][:longest]
        first = max(0, len(text.prompt) - 1 - settings.history)
        full = full or rows + len(tokens) - first > room
        if full or not text.prompt or len(tokens) < len(text.prompt) + 2:
            left_out += 1
            continue
        entries.append(Entry(text.id, text.kind, len(tokens), len(text.prompt), first, token_rows, rows))
        kept.append(tokens)
        rows, token_rows = rows + len(tokens) - first, token_rows + len(tokens)
    if not entries:
        raise UsageError(
            f"cache: none of {left_out} texts can be kept; cache.max_gb is {settings.max_gb:g}, "
            f"cache.max_length {settings.max_length}"
        )
    return Index(target.written(), list(layers), settings.history, left_out, entries), kept


def fill(
    verifier: TorchVerifier,
    index: Index,
    texts: Sequence[Sequence[int]],
    out: Path,
    advance: Callable[[str], None],
) -> None:
    """Writes the cache; an interrupted run of the same plan goes on. Takes no more memory than one text's
    states. Raises UsageError when ``out`` holds another cache.
    """
    out.mkdir(parents=True, exist_ok=True)
    written = _json(index)
    path = out / INDEX
    if not path.exists():
        np.asarray([token for text in texts for token in text], np.int32).tofile(out / TOKENS)
        _replace(path, written)
    elif path.read_text(encoding="utf-8") != written:
        raise UsageError(f"{out}: holds a cache of other texts, layers or target; another folder is right")
    done = int((out / DONE).read_text()) if (out / DONE).exists() else 0
    mode: Any = "r+" if (out / STATES).exists() else "w+"
    states = np.memmap(out / STATES, np.float16, mode, shape=index.shape)
    hooks = HiddenStates(verifier.model, index.layers)
    try:
        for number, (entry, tokens) in enumerate(zip(index.entries, texts, strict=True)):
            if number >= done:
                found = states_of(verifier, hooks, tokens)[entry.first :]
                states[entry.row : entry.row + len(found)] = found
                if (number + 1) % _SAVE_EVERY == 0 or number + 1 == len(texts):
                    states.flush()
                    _replace(out / DONE, str(number + 1))
            advance(entry.id)
    finally:
        hooks.remove()


def write_index(out: Path, index: Index, texts: Sequence[Sequence[int]]) -> None:
    """Completes a cache whose states are written."""
    np.asarray([token for text in texts for token in text], np.int32).tofile(out / TOKENS)
    _replace(out / DONE, str(len(texts)))
    _replace(out / INDEX, _json(index))


def _json(index: Index) -> str:
    return json.dumps({**asdict(index), "entries": [asdict(entry) for entry in index.entries]})


@torch.inference_mode()
def states_of(verifier: TorchVerifier, hooks: HiddenStates, tokens: Sequence[int]) -> npt.NDArray[np.float16]:
    """Float16 [tokens, chosen layers + 1, hidden] from one forward: the layers' outputs, then the last hidden
    state as the output matrix takes it.
    """
    model = verifier.model.base_model
    ids = torch.tensor([list(tokens)], device=verifier.model.device)
    last = model(input_ids=ids, use_cache=False).last_hidden_state
    states = torch.cat([hooks.take()[:, 0], last]).transpose(0, 1).float()
    found: npt.NDArray[np.float16] = states.clamp(-LARGEST, LARGEST).half().cpu().numpy()
    return found


def read_index(folder: Path) -> Index:
    """What the cache in ``folder`` holds. Raises UsageError when there is none, or it is not complete."""
    try:
        given = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        index = Index(**{**given, "entries": [Entry(**entry) for entry in given["entries"]]})
        done = int((folder / DONE).read_text())
        size = (folder / STATES).stat().st_size
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{folder}: no cache as `cache` writes it ({error})") from error
    if done < len(index.entries) or size != 2 * int(np.prod(index.shape)):
        raise UsageError(f"{folder}: the cache is not complete; run `cache` again, it goes on")
    return index


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
