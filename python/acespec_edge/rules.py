"""A caller's sampling options, checked against the bundle's vocabulary."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final

from acespec_edge import _core
from acespec_edge.errors import UsageError

_FIELDS: Final = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "banned",
    "allowed",
    "min_tokens",
    "carried",
)


def make_rules(
    vocabulary: int,
    *,
    seed: int | None,
    logit_bias: Mapping[int, float] | None,
    banned_tokens: Iterable[int] | None,
    allowed_tokens: Iterable[int] | None,
    min_tokens: int,
    max_tokens: int,
    carried: int,
    **fields: float,
) -> _core.SamplingRules:
    """The rules of a request that goes on with ``carried`` tokens of output; ``fields``: those of
    SamplingRules that need no care. Without a seed one is drawn.

    Raises UsageError naming the first option that is wrong.
    """
    if seed is not None and not 0 <= seed < 1 << 64:
        raise UsageError(f"seed is {seed}: it must be 0 to 2**64 - 1")
    if not 0 <= min_tokens <= carried + max_tokens:
        raise UsageError(f"min_tokens is {min_tokens}: it must be 0 to max_tokens, {carried + max_tokens}")
    biases = dict(logit_bias or {})
    if allowed_tokens is not None and not (allowed_tokens := list(allowed_tokens)):
        raise UsageError("allowed_tokens is empty: name a token, or leave it out to allow all")
    rules = _core.SamplingRules(
        # 53 bits, so that a seed survives JSON readers that keep numbers as doubles.
        seed=secrets.randbits(53) if seed is None else seed,
        logit_bias=[(_token("logit_bias", token, vocabulary), float(bias)) for token, bias in biases.items()],
        banned=[_token("banned_tokens", token, vocabulary) for token in banned_tokens or ()],
        allowed=[_token("allowed_tokens", token, vocabulary) for token in allowed_tokens or ()],
        min_tokens=min_tokens,
        carried=carried,
        **fields,  # type: ignore[arg-type]
    )
    rules.validate()
    most = _core.Limits().max_listed
    for name, listed in (
        ("logit_bias", biases),
        ("banned_tokens", rules.banned),
        ("allowed_tokens", rules.allowed),
    ):
        if len(listed) > most:
            raise UsageError(f"{name} has {len(listed)} tokens: {most} are the most")
    return rules


def replaced(rules: _core.SamplingRules, **fields: Any) -> _core.SamplingRules:
    """The same rules but for ``fields``."""
    return _core.SamplingRules(**{name: getattr(rules, name) for name in _FIELDS} | fields)


def carrying(rules: _core.SamplingRules, tokens: int) -> _core.SamplingRules:
    """The same rules, by which ``tokens`` more tokens at the end of the prompt count as output."""
    return replaced(rules, carried=rules.carried + tokens)


def _token(option: str, token: object, vocabulary: int) -> int:
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocabulary:
        raise UsageError(f"{option} names {token!r}: token ids of this bundle are 0 to {vocabulary - 1}")
    return token
