"""The requests that the gateway reads. Fields that it does not know are passed over, null is not given."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from acespec_edge.gateway.errors import ApiError, bad_request
from acespec_edge.request import MAX_LOGPROBS

MAX_CHOICES: Final = 128
"""Answers to one request."""

_SHOWN: Final = 80
"""Characters of a wrong value in a message."""

_Tokens = Annotated[int, Field(ge=1, lt=1 << 32)]
_Logprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
_Asked = TypeVar("_Asked", bound="Asked")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class StreamOptions(BaseModel):
    """``stream_options``."""

    model_config = ConfigDict(strict=True, frozen=True)

    include_usage: bool | None = None


class Asked(BaseModel):
    """What both kinds of request have: OpenAI's fields, then this gateway's own."""

    model_config = ConfigDict(strict=True, frozen=True)

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: _Tokens | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: Annotated[list[str] | None, BeforeValidator(_listed)] = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    regex: str | None = None
    mode: str | None = None
    acespec_stats: bool | None = None


class ChatRequest(Asked):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: _Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: _Logprobs | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    functions: Any = None
    function_call: Any = None


class CompletionRequest(Asked):
    """``POST /v1/completions``."""

    prompt: Any = None
    logprobs: _Logprobs | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


def parse(kind: type[_Asked], body: dict[str, Any]) -> _Asked:
    """``body`` as a ``kind``. Raises ApiError (400) for the first field that is wrong."""
    try:
        return kind.model_validate(body)
    except ValidationError as problem:
        raise _refusal(problem) from problem


def _refusal(problem: ValidationError) -> ApiError:
    first = problem.errors(include_url=False, include_context=False)[0]
    field = ""
    for part in first["loc"]:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else part
    if first["type"] == "missing":
        return bad_request(f"{field} is missing", field)
    value = repr(first["input"])
    if len(value) > _SHOWN:
        value = value[:_SHOWN] + "..."
    what = first["msg"].replace("Input should be", "it must be")
    return bad_request(f"{field} is {value}: {what}", field)
