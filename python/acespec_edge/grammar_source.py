"""What a caller writes as a grammar, a JSON schema or a regular expression, as source for llguidance."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any, Final, Literal, NoReturn, cast, get_args

from llguidance import regex_to_lark

from acespec_edge.errors import UsageError

Kind = Literal["json_schema", "regex"]

KINDS: Final[tuple[str, ...]] = get_args(Kind)

MAX_BYTES: Final = 64 << 10
"""Of a grammar's text in UTF-8."""

MAX_MULTIPLE: Final = 10_000
"""Of a schema's `multipleOf` together: multiples of n take an automaton of n states, built at once."""

# A blank, or a line break and its indentation: every usual layout, and no room to write blanks for ever.
_WHITESPACE: Final = r" |\n[ \t]{0,40}"

# Any token whose bytes fit is allowed, not only the usual tokens of a text that is certain. So what a mask
# allows depends on the bytes of tokens alone.
_EVERY_TOKEN: Final = '%llguidance {"no_forcing": true}\n'


def grammar_source(kind: str, text: str, leading_spaces: int) -> str:
    """llguidance's grammar of the texts that `text` describes, in bytes as tokens write them: a decoder that
    takes `leading_spaces` off the front of a text allows as many more there.

    Raises UsageError for an unknown kind, a text over MAX_BYTES, or what is no usable JSON schema. Regular
    expressions are read by llguidance.
    """
    if kind not in KINDS:
        raise UsageError(f"grammar kind is {kind!r}: it must be one of {', '.join(KINDS)}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as problem:
        raise UsageError(f"{kind}: holds half of a surrogate pair at {problem.start}") from problem
    if size > MAX_BYTES:
        raise UsageError(f"{kind} has {size} bytes: {MAX_BYTES} are the most")
    if kind == "regex":
        return json.dumps({"grammars": [{"lark_grammar": _EVERY_TOKEN + _regex_rules(text, leading_spaces)}]})
    start = f"{_EVERY_TOKEN}start: {_spaces(0, leading_spaces)}@json"
    schema = {**_schema(text), "x-guidance": {"whitespace_pattern": _WHITESPACE}}
    rules = {"name": "json", "json_schema": schema}
    return json.dumps({"grammars": [{"lark_grammar": start}, rules]})


def _regex_rules(text: str, leading_spaces: int) -> str:
    if (len(text) - len(text.rstrip("\\"))) % 2:
        raise UsageError("regex: ends in a backslash that escapes nothing")
    pattern = f"/{regex_to_lark(text, '')}/" if text else '""'  # two slashes would begin a comment
    if leading_spaces == 0:
        return f"start: {pattern}"
    # A text that begins with a blank itself needs all the blanks that the decoder takes off.
    return (
        f'start: "{" " * leading_spaces}" TEXT | {_spaces(0, leading_spaces - 1)}UNLED\n'
        f"TEXT: {pattern}\nUNLED: TEXT & /([^ ](?s:.)*)?/"
    )


def _spaces(fewest: int, most: int) -> str:
    return f"/ {{{fewest},{most}}}/ " if most > 0 else ""


def _schema(text: str) -> dict[str, Any]:
    try:
        schema = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(schema, allow_nan=False)  # numbers beyond a double read as infinite
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"json_schema: not valid JSON ({problem})") from problem
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        found = "false, which nothing satisfies" if schema is False else f"a JSON {type(schema).__name__}"
        raise UsageError(f"json_schema: is {found}; a schema is an object")
    _check_multiples(schema)
    return cast("dict[str, Any]", schema)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _check_multiples(schema: dict[str, Any]) -> None:
    together = 1
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += part.values()
            value = part.get("multipleOf")
            if isinstance(value, int | float) and not isinstance(value, bool) and value:
                digits = Decimal(str(value)).normalize().as_tuple().digits
                together = math.lcm(together, int("".join(map(str, digits))))
        elif isinstance(part, list):
            waiting += part
    if together > MAX_MULTIPLE:
        raise UsageError(
            "json_schema: the least common multiple of the multipleOf values, powers of ten left out, is "
            f"over {MAX_MULTIPLE}"
        )
