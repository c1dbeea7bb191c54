"""Chat completions."""

from __future__ import annotations

from typing import Any

from acespec_edge.gateway.answers import FINISH, Choice
from acespec_edge.gateway.errors import bad_request
from acespec_edge.gateway.logprobs import chat_logprobs
from acespec_edge.gateway.options import wish_of
from acespec_edge.gateway.schema import ChatRequest
from acespec_edge.gateway.service import Gateway, Job
from acespec_edge.gateway.tool_calls import ToolCall, ToolCallReader, writes_calls
from acespec_edge.logprobs import TokenLogprob
from acespec_edge.result import Piece, Result


async def chat_jobs(gateway: Gateway, asked: ChatRequest) -> list[Job]:
    """The generations of a chat request. Raises ApiError and UsageError for what is wrong with it."""
    _check(asked)
    completion = asked.max_completion_tokens is not None
    wish = wish_of(
        asked,
        logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
        max_tokens=asked.max_completion_tokens if completion else asked.max_tokens,
        limit_name="max_completion_tokens" if completion else "max_tokens",
        json_schema=_json_schema(asked),
    )
    # Templates know no developers; what they say is what a system message says.
    messages = [
        {**turn, "role": "system"} if turn.get("role") == "developer" else turn for turn in asked.messages
    ]
    return await gateway.jobs([messages], wish, raw=False, tools=_tools(asked))


def chat_form(gateway: Gateway, asked: ChatRequest) -> ChatForm:
    """How the answer to ``asked`` is written."""
    bundle = gateway.edge.bundle
    calls = bool(_tools(asked)) and writes_calls(bundle)
    return ChatForm(
        calls=calls,
        most_calls=1 if asked.parallel_tool_calls is False else None,
        stop_ids=frozenset() if asked.ignore_eos else frozenset(bundle.eos_ids),
    )


class ChatForm:
    """A Form. Log-probabilities leave the end-of-sequence token out, which is no part of the message. Not
    thread-safe."""

    prefix = "chatcmpl"
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, *, calls: bool, most_calls: int | None, stop_ids: frozenset[int]) -> None:
        """``calls``: look for calls of functions, ``most_calls`` at most, in the text."""
        self._calls = calls
        self._most_calls = most_calls
        self._stop_ids = stop_ids
        self._reader = ToolCallReader(most_calls)
        self._sent_calls = 0

    def begin(self, index: int) -> list[Choice]:
        self._reader = ToolCallReader(self._most_calls)
        self._sent_calls = 0
        return [_chunk(index, {"role": "assistant", "content": ""})]

    def piece(self, index: int, piece: Piece) -> list[Choice]:
        parts: list[str | ToolCall] = [piece.text] if piece.text else []
        if self._calls:
            parts = self._reader.push(piece.text)
        return self._chunks(index, parts, piece.logprobs)

    def end(self, index: int, result: Result) -> list[Choice]:
        chunks = self._chunks(index, self._reader.finish() if self._calls else [], None)
        return [*chunks, {**_chunk(index, {}), "finish_reason": self._finish(result)}]

    def whole(self, index: int, result: Result) -> Choice:
        self._reader = ToolCallReader(self._most_calls)
        parts: list[str | ToolCall] = [result.text]
        if self._calls:
            parts = [*self._reader.push(result.text), *self._reader.finish()]
        text = "".join(part for part in parts if isinstance(part, str))
        calls = [part.to_dict() for part in parts if isinstance(part, ToolCall)]
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        return {
            "index": index,
            "message": message,
            "logprobs": None if result.logprobs is None else self._logprobs(result.logprobs),
            "finish_reason": self._finish(result),
        }

    def _chunks(
        self, index: int, parts: list[str | ToolCall], entries: list[TokenLogprob] | None
    ) -> list[Choice]:
        chunks = []
        for part in parts:
            if isinstance(part, str):
                chunks.append(_chunk(index, {"content": part}))
            else:
                call = {"index": self._sent_calls, **part.to_dict()}
                chunks.append(_chunk(index, {"tool_calls": [call]}))
                self._sent_calls += 1
        # All of a piece's with its first chunk: which token a held text belongs to is no longer known.
        if entries is not None and (logprobs := self._logprobs(entries))["content"]:
            if not chunks:
                chunks.append(_chunk(index, {"content": ""}))
            chunks[0]["logprobs"] = logprobs
        return chunks

    def _logprobs(self, entries: list[TokenLogprob]) -> dict[str, Any]:
        return chat_logprobs([entry for entry in entries if entry.token not in self._stop_ids])

    def _finish(self, result: Result) -> str:
        finish = FINISH[result.finish_reason]
        return "tool_calls" if finish == "stop" and self._reader.calls else finish


def _chunk(index: int, delta: dict[str, Any]) -> Choice:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _check(asked: ChatRequest) -> None:
    if asked.functions is not None or asked.function_call is not None:
        raise bad_request("functions: use tools and tool_choice in place of functions", "functions")
    if asked.top_logprobs is not None and not asked.logprobs:
        raise bad_request(f"top_logprobs is {asked.top_logprobs}: it needs logprobs = true", "top_logprobs")
    if asked.tool_choice not in (None, "none", "auto"):
        raise bad_request(
            f'tool_choice is {asked.tool_choice!r:.80}: "none" or "auto" is right, the model decides',
            "tool_choice",
        )
    if _tools(asked) and (_json_schema(asked) is not None or asked.regex is not None):
        raise bad_request(
            "response_format or regex holds all of the output to a form that leaves no room for calls: leave "
            'tools out, or give tool_choice = "none"',
            "tools",
        )


def _tools(asked: ChatRequest) -> list[dict[str, Any]] | None:
    return None if asked.tool_choice == "none" else asked.tools or None


def _json_schema(asked: ChatRequest) -> dict[str, Any] | None:
    """The schema that ``response_format`` asks for; None for plain text."""
    form = asked.response_format or {"type": "text"}
    kind = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise bad_request(
            f"response_format.type is {kind!r}: it must be text, json_object or json_schema",
            "response_format.type",
        )
    given = form.get("json_schema")
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, dict):
        raise bad_request(
            f"response_format.json_schema is {given!r:.80}: it must be an object with a schema",
            "response_format.json_schema",
        )
    return schema
