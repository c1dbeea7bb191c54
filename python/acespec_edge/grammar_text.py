"""A grammar before it is compiled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from acespec_edge.errors import UsageError

if TYPE_CHECKING:
    from acespec_edge.grammar_source import Kind


@dataclass(frozen=True, slots=True)
class GrammarText:
    """What an output must match, as the wire carries it."""

    kind: Kind
    text: str


def grammar_text(json_schema: Mapping[str, Any] | str | None, regex: str | None) -> GrammarText | None:
    """The one that a caller gave, if any. Raises UsageError for both, for one that is empty, or for a schema
    that is no JSON."""
    if json_schema is not None and regex is not None:
        raise UsageError("json_schema and regex exclude each other: give one")
    if regex is not None:
        if not regex:
            raise UsageError("regex is empty, which only an empty text matches")
        return GrammarText("regex", regex)
    if json_schema is None:
        return None
    if isinstance(json_schema, str):
        if not json_schema:
            raise UsageError("json_schema is empty: {} describes any JSON")
        return GrammarText("json_schema", json_schema)
    try:
        return GrammarText("json_schema", json.dumps(json_schema, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError) as problem:
        raise UsageError(f"json_schema: not valid JSON ({problem})") from problem
