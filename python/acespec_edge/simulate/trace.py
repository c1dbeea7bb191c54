"""Recorded traces: what a target wrote, and what its drafter thought of every position."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from acespec_edge.errors import UsageError

VERSION: Final = 1
_KEY: Final = "acespec_trace"
_MOST_BYTES: Final = 1 << 30
_TYPES: Final = {"U16": "<u2", "I32": "<i4", "F16": "<f2"}
_TENSORS: Final = ("prompt", "prompt_ends", "text", "text_ends", "top", "scores")

Ids = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Record:
    """One answer. ``text``: the target's own tokens, int32 [N]; ``top``: the drafter's likeliest ids before
    each of them, given all tokens before it, int32 [N, W]; ``scores``: their log-probabilities, float32
    [N, W], falling along a row. ``seed``: of the noise that the text was drawn by.
    """

    id: str
    kind: str
    seed: int
    prompt: list[int]
    text: list[int]
    top: Ids
    scores: Scores


@dataclass(frozen=True, slots=True)
class Timing:
    """Measured milliseconds of a forward, by what it forwards: tree nodes of the drafter, nodes that the
    target verifies (0: a plain step). ``prefill_ms``: of the target, for each token of a prompt."""

    edge_ms: Mapping[int, float] = field(default_factory=dict)
    cloud_ms: Mapping[int, float] = field(default_factory=dict)
    prefill_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """``vocabulary``: ids that may be drawn. ``temperature``: 0 is greedy. ``machine``: where ``timing`` was
    measured. ``sources``: where the models and the prompts come from.
    """

    pair: str
    drafter: str
    target: str
    vocabulary: int
    temperature: float
    stop_ids: tuple[int, ...]
    records: Sequence[Record]
    machine: str = ""
    sources: tuple[str, ...] = ()
    timing: Timing = field(default_factory=Timing)

    def matches(self) -> dict[str, list[float]]:
        """By kind of prompt: the share of positions whose token is the drafter's first choice, among its
        first two, and so on up to four."""
        found: dict[str, list[float]] = {}
        for kind in dict.fromkeys(record.kind for record in self.records):
            ranks = np.concatenate([_ranks(record) for record in self.records if record.kind == kind])
            found[kind] = [float(np.mean(ranks <= rank)) for rank in range(4)]
        return found

    def save(self, path: Path) -> None:
        """Writes the file (docs/simulator.md, "Traces"). Raises UsageError when it cannot be written."""
        small = self.vocabulary <= 1 << 16
        ids = np.uint16 if small else np.int32
        tensors: dict[str, npt.NDArray[Any]] = {
            "prompt": np.array([token for record in self.records for token in record.prompt], ids),
            "prompt_ends": np.cumsum([len(record.prompt) for record in self.records], dtype=np.int32),
            "text": np.array([token for record in self.records for token in record.text], ids),
            "text_ends": np.cumsum([len(record.text) for record in self.records], dtype=np.int32),
            "top": np.concatenate([record.top for record in self.records]).astype(ids),
            "scores": np.concatenate([record.scores for record in self.records]).astype(np.float16),
        }
        about = asdict(self) | {
            "version": VERSION,
            "records": [{"id": r.id, "kind": r.kind, "seed": r.seed} for r in self.records],
        }
        header: dict[str, Any] = {"__metadata__": {_KEY: json.dumps(about)}}
        offset = 0
        for name, values in tensors.items():
            kind = {"u": "U16", "i": "I32", "f": "F16"}[values.dtype.kind]
            header[name] = {
                "dtype": kind,
                "shape": list(values.shape),
                "data_offsets": [offset, offset + values.nbytes],
            }
            offset += values.nbytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        try:
            with path.open("wb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                for values in tensors.values():
                    file.write(np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes())
        except OSError as problem:
            raise UsageError(f"trace {path}: cannot be written ({problem})") from problem

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Reads a file that save() wrote. Raises UsageError naming it and what is wrong with it."""
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise ValueError(f"it has more than {_MOST_BYTES} bytes")
            data = path.read_bytes()
            length = int.from_bytes(data[:8], "little")
            if not 2 <= length <= len(data) - 8:
                raise ValueError(f"its header would have {length} bytes")
            header = json.loads(data[8 : 8 + length])
            about = json.loads(header["__metadata__"][_KEY])
            if about["version"] != VERSION:
                raise ValueError(f"it is of version {about['version']}, this release reads {VERSION}")
            body = memoryview(data)[8 + length :]
            tensors = {name: _tensor(name, header[name], body) for name in _TENSORS}
            return _joined(about, tensors)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            what = f"it lacks {problem}" if isinstance(problem, KeyError) else problem
            raise UsageError(f"trace {path}: not a usable trace ({what})") from problem


def descending(scores: Scores) -> Scores:
    """The scores, with those equal in half precision apart again: rank decides, as when they were
    recorded."""
    falling: Scores = np.minimum.accumulate(scores.astype(np.float32), axis=1)
    falling -= np.arange(scores.shape[1], dtype=np.float32) * np.float32(1e-5)
    return falling


def _ranks(record: Record) -> npt.NDArray[np.int64]:
    """The rank of each token among the drafter's, or their number when it is not among them."""
    equal = record.top == np.array(record.text)[:, None]
    ranks: npt.NDArray[np.int64] = np.where(equal.any(axis=1), equal.argmax(axis=1), record.top.shape[1])
    return ranks


def _tensor(name: str, entry: Mapping[str, Any], body: memoryview) -> npt.NDArray[Any]:
    kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if kind not in _TYPES:
        raise ValueError(f"{name} has type {kind}: {', '.join(_TYPES)} are right")
    size = math.prod(shape) * np.dtype(_TYPES[kind]).itemsize
    if min(begin, *shape) < 0 or end - begin != size or end > len(body):
        raise ValueError(f"{name} does not fit the file")
    return np.frombuffer(body[begin:end], _TYPES[kind]).reshape(shape)


def _joined(about: dict[str, Any], tensors: dict[str, npt.NDArray[Any]]) -> Trace:
    vocabulary, count = int(about["vocabulary"]), len(about["records"])
    if count == 0 or vocabulary < 1:
        raise ValueError(f"it has {count} records and a vocabulary of {vocabulary}")
    for name in ("prompt", "text", "top"):
        values = tensors[name]
        if values.size and not 0 <= int(values.min()) <= int(values.max()) < vocabulary:
            raise ValueError(f"{name} has ids outside its vocabulary of {vocabulary}")
    prompts, texts = (_cuts(name, tensors, count) for name in ("prompt", "text"))
    top, scores = tensors["top"], tensors["scores"]
    if top.ndim != 2 or top.shape != scores.shape or len(top) != texts[-1] or top.shape[1] < 1:
        raise ValueError(f"top is {top.shape} and scores {scores.shape} for {texts[-1]} tokens of text")
    if not np.isfinite(scores).all():
        raise ValueError("scores are not all finite")
    records = []
    for number, entry in enumerate(about["records"]):
        prompt = slice(prompts[number], prompts[number + 1])
        text = slice(texts[number], texts[number + 1])
        records.append(
            Record(
                id=str(entry["id"]),
                kind=str(entry["kind"]),
                seed=int(entry["seed"]),
                prompt=tensors["prompt"][prompt].tolist(),
                text=tensors["text"][text].tolist(),
                top=top[text].astype(np.int32),
                scores=descending(scores[text]),
            )
        )
    timing = about["timing"]
    return Trace(
        pair=str(about["pair"]),
        drafter=str(about["drafter"]),
        target=str(about["target"]),
        vocabulary=vocabulary,
        temperature=float(about["temperature"]),
        stop_ids=tuple(int(token) for token in about["stop_ids"]),
        records=records,
        machine=str(about["machine"]),
        sources=tuple(str(source) for source in about["sources"]),
        timing=Timing(
            _milliseconds(timing["edge_ms"]),
            _milliseconds(timing["cloud_ms"]),
            _milliseconds({"0": timing["prefill_ms"]})[0],
        ),
    )


def _cuts(name: str, tensors: dict[str, npt.NDArray[Any]], count: int) -> list[int]:
    """Where each record's tokens begin and the last one's end; each has at least one."""
    cuts = [0, *tensors[f"{name}_ends"].tolist()]
    if len(cuts) != count + 1 or any(a >= b for a, b in itertools.pairwise(cuts)):
        raise ValueError(f"{name}_ends is not {count} rising numbers")
    if cuts[-1] != len(tensors[name]):
        raise ValueError(f"{name} has {len(tensors[name])} tokens, {name}_ends speaks of {cuts[-1]}")
    return cuts


def _milliseconds(table: Mapping[str, Any]) -> dict[int, float]:
    """By count; JSON has it as text."""
    found = {int(count): float(ms) for count, ms in table.items()}
    if any(count < 0 or not 0 <= ms < math.inf for count, ms in found.items()):
        raise ValueError("timing has entries that are no times")
    return found
