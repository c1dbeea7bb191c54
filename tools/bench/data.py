"""The prompts that measurements run on: a small set of our own, or published sets from a folder."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acespec_edge.errors import UsageError

DEFAULT = Path(__file__).resolve().parent.parent / "prompts" / "default.jsonl"
KINDS = ("code", "math", "chat")


@dataclass(frozen=True)
class Prompt:
    """One user turn. `kind` is the set it belongs to: code, math or chat."""

    id: str
    kind: str
    text: str


def _code(row: dict[str, Any]) -> str:
    return f"Complete this Python function:\n\n{row['prompt']}"


def _plain(row: dict[str, Any]) -> str:
    return str(row["prompt"])


def _first_turn(row: dict[str, Any]) -> str:
    return str(row["turns"][0])


_PUBLISHED: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "code": ("humaneval.jsonl", _code),
    "math": ("gsm8k_test200.jsonl", _plain),
    "chat": ("mtbench80.jsonl", _first_turn),
}


def load_prompts(folder: Path | None = None) -> dict[str, list[Prompt]]:
    """Prompts by kind: our own, or HumanEval, GSM8K and MT-bench (first turns) from JSON lines in `folder`.

    Raises UsageError naming the file, and the line, that is missing or malformed.
    """
    if folder is None:
        return read_prompts(DEFAULT)
    return {
        kind: [Prompt(row["id"], kind, text(row)) for row in _rows(folder / name, "id", "prompt")]
        for kind, (name, text) in _PUBLISHED.items()
    }


def long_prompts(folder: Path) -> Iterator[str]:
    """Prompts of thousands of tokens, of agents at work and of meetings, from JSON lines in `folder`.

    Raises UsageError naming the file, and the line, that is missing or malformed.
    """
    for name in ("sweagent_steps.jsonl", "taubench_airline20.jsonl", "qmsum_long5.jsonl"):
        for row in _rows(folder / name, "id", "prompt"):
            yield row["prompt"]


def read_prompts(path: Path) -> dict[str, list[Prompt]]:
    """Prompts by kind from JSON lines of id, kind and prompt; the file's own order within a kind.

    Raises UsageError naming the file, and the line, that is missing or malformed.
    """
    rows = [Prompt(row["id"], row["kind"], row["prompt"]) for row in _rows(path, "id", "kind", "prompt")]
    for row in rows:
        if row.kind not in KINDS:
            raise UsageError(
                f"{path}: the kind of {row.id} is {row.kind!r}: one of {', '.join(KINDS)} is right"
            )
    return {kind: [row for row in rows if row.kind == kind] for kind in KINDS}


def pick(prompts: dict[str, list[Prompt]], count: int) -> list[Prompt]:
    """The first `count` prompts, taken from the kinds in turn so that each is represented.

    Raises UsageError when there are fewer.
    """
    if count < 1:
        raise UsageError(f"prompts is {count}: give 1 or more")
    in_turn = (
        prompt for row in itertools.zip_longest(*prompts.values()) for prompt in row if prompt is not None
    )
    picked = list(itertools.islice(in_turn, count))
    if len(picked) < count:
        raise UsageError(f"prompts is {count}: there are {len(picked)}; --data FOLDER names larger sets")
    return picked


def _rows(path: Path, *fields: str) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; expected JSON lines with {', '.join(fields)}") from error
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
        missing = [name for name in fields if not isinstance(row, dict) or not isinstance(row.get(name), str)]
        if missing:
            raise UsageError(f"{path}, line {number}: no text in {', '.join(missing)}")
        yield row
