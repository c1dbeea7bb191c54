"""Calls of functions in what a model writes, as Qwen's and Hermes' templates have them:
``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any, Final

from acespec_edge.bundle import Bundle

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function's name, and its arguments as a JSON text."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}", compare=False)

    def to_dict(self) -> dict[str, Any]:
        """As a message has it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def writes_calls(bundle: Bundle) -> bool:
    """Whether the template of ``bundle`` asks for calls in this form, and its tokenizer leaves their marks in
    the text."""
    template = bundle.chat_template or ""
    if OPEN not in template or CLOSE not in template or "<function=" in template:
        return False
    vocabulary = bundle.vocabulary_table
    marks = (vocabulary.id_of(OPEN), vocabulary.id_of(CLOSE))
    return not any(mark is not None and vocabulary.is_special(mark) for mark in marks)


class ToolCallReader:
    """Splits a stream of text into plain text and calls. Not thread-safe.

    A call comes out when it is whole, blanks around calls vanish, and what only looks like a call stays text.
    Text that may still become the mark of one is held back: blanks, and less than a mark.
    """

    def __init__(self, most: int | None = None) -> None:
        """``most``: calls returned; any more are dropped. None returns all."""
        self._most = most
        self._held = ""
        self._blanks = ""  # before the call that is open
        self._inside = False
        self._searched = 0
        self.calls = 0

    def push(self, text: str) -> list[str | ToolCall]:
        """Takes the next piece of text; returns what is certain by now, in order."""
        self._held += text
        out: list[str | ToolCall] = []
        while self._close(out) if self._inside else self._open(out):
            pass
        return out

    def finish(self) -> list[str | ToolCall]:
        """The rest, when the text has ended: a call may lack its closing mark."""
        held, self._held = self._held, ""
        if not self._inside:
            return [] if not held or (self.calls and not held.strip()) else [held]
        call = _call(held)
        return self._counted(call) if call is not None else [self._blanks + OPEN + held]

    def _open(self, out: list[str | ToolCall]) -> bool:
        """Goes on to the next opening mark; False when there is none yet."""
        before, found, after = self._held.partition(OPEN)
        if found:
            text = before.rstrip()
            out += [text] if text else []
            self._blanks = before[len(text) :]
            self._held, self._inside, self._searched = after, True, 0
            return True
        kept = len(self._held) - _partial(self._held)
        kept = len(self._held[:kept].rstrip())
        if kept:
            out.append(self._held[:kept])
        self._held = self._held[kept:]
        return False

    def _close(self, out: list[str | ToolCall]) -> bool:
        """Goes on behind the call's closing mark; False when there is none yet."""
        end = self._held.find(CLOSE, self._searched)
        if end < 0:
            self._searched = max(0, len(self._held) - len(CLOSE) + 1)
            return False
        inner = self._held[:end]
        call = _call(inner)
        if call is None and _inside_string(inner):
            self._searched = end + 1  # the mark is part of an argument
            return True
        out += [self._blanks + OPEN + inner + CLOSE] if call is None else self._counted(call)
        self._held, self._inside = self._held[end + len(CLOSE) :], False
        return True

    def _counted(self, call: ToolCall) -> list[str | ToolCall]:
        self.calls += 1
        return [call] if self._most is None or self.calls <= self._most else []


def _partial(text: str) -> int:
    """Length of the longest end of ``text`` that begins an opening mark."""
    longest = min(len(text), len(OPEN) - 1)
    return next((length for length in range(longest, 0, -1) if OPEN.startswith(text[-length:])), 0)


def _call(text: str) -> ToolCall | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = value.get("arguments", {})
    if isinstance(arguments, dict):
        return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))
    return ToolCall(value["name"], arguments) if isinstance(arguments, str) else None


def _inside_string(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError as problem:
        return problem.msg.startswith("Unterminated string")
    except RecursionError:
        return False
    return False
