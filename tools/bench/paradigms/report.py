"""The figures as a JSON document and as tables."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from acespec_edge.errors import UsageError
from tools.bench.paradigms.grid import Cell

FORMAT: Final = "acespec-paradigms"
VERSION: Final = 1

_NUMBERS: Final = ("rtt_ms", "up_bps", "temperature")
_NUMBERS_OR_NONE: Final = ("tokens_per_second", "budget", "hit_rate", "speedup")
_TEXTS: Final = ("paradigm", "label", "title")

_COLUMNS: Final = (
    ("tok/s", "tokens_per_second", "{:.2f}"),
    ("x cloud", "speedup", "{:.2f}"),
    ("TTFT ms", "ttft_ms", "{:.0f}"),
    ("gap p50", "gap_p50_ms", "{:.0f}"),
    ("p99 ms", "gap_p99_ms", "{:.0f}"),
    ("up B/tok", "up_bytes_per_token", "{:.1f}"),
    ("down", "down_bytes_per_token", "{:.1f}"),
    ("max up", "max_up_bytes", "{:.0f}"),
    ("accepted", "accepted_per_round", "{:.2f}"),
    ("hits", "hit_rate", "{:.2f}"),
    ("drafter/tok", "drafter_forwards_per_token", "{:.2f}"),
    ("target/tok", "target_forwards_per_token", "{:.2f}"),
)


def save(path: Path, document: dict[str, Any]) -> None:
    """Writes the document whole or not at all. Raises UsageError when the file cannot be written."""
    beside = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise UsageError(f"json is {str(path)!r}: it cannot be written ({error.strerror})") from error


def load(path: Path) -> dict[str, Any]:
    """Reads a document. Raises UsageError naming the file and what is missing in it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path}: no JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"{path}: no result of tools.bench.paradigms")
    if document.get("version") != VERSION:
        raise UsageError(f"{path}: version {document.get('version')}, where {VERSION} is read here")
    wanted: dict[str, Any] = {"pair": str, "verify_ms": list, "sweep": dict | None, "rows": list}
    for name, kind in wanted.items():
        if name not in document or not isinstance(document[name], kind):
            raise UsageError(f"{path}: {name} is {document.get(name)!r}")
    padding = document["verify_ms"]
    if len(padding) != 2 or not all(isinstance(value, int | float) for value in padding):
        raise UsageError(f"{path}: verify_ms is {padding!r}: two numbers would be right")
    for number, row in enumerate(document["rows"]):
        _check_row(row, f"{path}, row {number}")
    return document


def _check_row(row: Any, where: str) -> None:
    if not isinstance(row, dict):
        raise UsageError(f"{where}: no object")
    for name in (*_NUMBERS, *_NUMBERS_OR_NONE, *_TEXTS):
        value = row.get(name)
        wanted: tuple[type, ...] = (str,) if name in _TEXTS else (int, float)
        absent = value is None and name in _NUMBERS_OR_NONE and name in row
        if not isinstance(value, wanted) and not absent:
            raise UsageError(f"{where}: {name} is {value!r}")


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """A table a cell, differences and failures below it."""
    cells = dict.fromkeys((row["rtt_ms"], row["up_bps"], row["down_bps"]) for row in rows)
    return "\n\n".join(
        _table(Cell(*cell), [row for row in rows if (row["rtt_ms"], row["up_bps"], row["down_bps"]) == cell])
        for cell in cells
    )


def _table(cell: Cell, rows: Sequence[dict[str, Any]]) -> str:
    heads = [head for head, _, _ in _COLUMNS]
    width = max(len("paradigm"), *(len(row["label"]) for row in rows))
    lines = [str(cell), f"{'paradigm':<{width}}  {'  '.join(heads)}  identical"]
    for row in rows:
        texts = [
            f"{'-' if row[name] is None else form.format(row[name]):>{len(head)}}"
            for head, name, form in _COLUMNS
        ]
        lines.append(f"{row['label']:<{width}}  {'  '.join(texts)}  {_identity(row)}")
    for row in rows:
        lines += _notes(row)
    return "\n".join(lines)


def _identity(row: dict[str, Any]) -> str:
    identity = row["identity"]
    if not identity["checked"]:
        return "its own text" if row["paradigm"] == "edge" else "not comparable"
    return f"{identity['identical']}/{identity['checked']}"


def _notes(row: dict[str, Any]) -> list[str]:
    notes = []
    if row["failure"] is not None:
        notes.append(f"  {row['label']} FAILED: {row['failure']}")
    identity = row["identity"]
    for found in identity["differences"]:
        kind = "tie" if found["tie"] else "MISMATCH" if identity["must_be"] else "rounding"
        notes.append(
            f"  {kind}: {row['label']}, {found['question']}, token {found['position']}: "
            f"target {found['expected']}, got {found['got']}"
        )
    if row["chosen"]:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in row["chosen"].items())
        notes.append(f"  {row['label']} chose {shares}. {row['why']}".rstrip())
    return notes
