"""From the fields of a request to the options of the runtime."""

from __future__ import annotations

from typing import Any, Final, cast

from acespec_edge.gateway.errors import bad_request
from acespec_edge.gateway.schema import Asked
from acespec_edge.gateway.service import Wish
from acespec_edge.request import Mode, Options

_TEMPERATURE: Final = 1.0
"""OpenAI's default."""

_SAME: Final = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "stop"),
    *("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "regex"),
)
"""Fields that the runtime calls the same; those not given have its defaults."""


def wish_of(
    asked: Asked,
    *,
    logprobs: int | None,
    max_tokens: int | None,
    limit_name: str = "max_tokens",
    json_schema: dict[str, Any] | None = None,
) -> Wish:
    """What ``asked`` wants of the runtime. Raises ApiError (400)."""
    options: dict[str, Any] = {"temperature": _TEMPERATURE}
    options |= {name: value for name in _SAME if (value := getattr(asked, name)) is not None}
    if asked.logit_bias:
        options["logit_bias"] = {_token(key): bias for key, bias in asked.logit_bias.items()}
    if json_schema is not None:
        options["json_schema"] = json_schema
    options["logprobs"] = logprobs
    return Wish(
        options=cast("Options", options),
        mode=cast("Mode | None", asked.mode),
        n=asked.n or 1,
        seed=asked.seed,
        max_tokens=max_tokens,
        limit_name=limit_name,
    )


def _token(key: str) -> int:
    if not key.isascii() or not key.isdecimal() or len(key) > 9:
        raise bad_request(f"logit_bias names {key[:20]!r}: its keys are token ids", "logit_bias")
    return int(key)
