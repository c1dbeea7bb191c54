"""What is tested, as data."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from acespec_edge import _core

Mode = Literal["greedy", "coupled", "residual"]


@dataclass(frozen=True)
class Regex:
    """A grammar, and the same said once more in plain terms: the tokens that it allows after an output."""

    text: str
    allowed: Callable[[Sequence[int]], Collection[int]]


@dataclass(frozen=True)
class Case:
    """``rules``: of every request, but for the seed. ``dropped``: what the negative control's cloud leaves
    out of them ("grammar": the grammar); nothing: it passes drafted tokens unasked or, in residual mode, the
    edge draws corrections from p instead of what q leaves of it. ``drafter``: rules of the drafter's own.
    ``sharpness``: of the models' logits; 0 makes them uniform, so that biases alone say what is drawn.
    """

    mode: Mode
    what: str
    rules: Mapping[str, Any]
    dropped: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    drafter: Mapping[str, Any] | None = None
    sharpness: float = 1.0
    grammar: Regex | None = None

    @property
    def name(self) -> str:
        """Mode and rules."""
        return f"{self.mode}: {self.what}"

    def request(self, number: int) -> _core.SamplingRules:
        """The rules of one draw; no two draws of any case share a seed."""
        return _core.SamplingRules(seed=zlib.crc32(self.name.encode()) << 32 | number, **self.rules)


def odds(*weights: float) -> dict[str, Any]:
    """Rules that make uniform logits a distribution over the first tokens."""
    tokens = range(len(weights))
    return {
        "temperature": 1.0,
        "allowed": list(tokens),
        "logit_bias": [(token, math.log(weights[token])) for token in tokens],
    }


SHAPING: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[int, ...]]] = {
    "repetition_penalty": ({"repetition_penalty": 4.0}, ("repetition_penalty",), ()),
    "presence_penalty": ({"presence_penalty": 2.0}, ("presence_penalty",), ()),
    "frequency_penalty": ({"frequency_penalty": 2.0}, ("frequency_penalty",), ()),
    "frequency_reward": ({"frequency_penalty": -2.0}, ("frequency_penalty",), ()),
    "logit_bias": ({"logit_bias": [(2, 2.0), (5, -100.0), (9, 0.7)]}, ("logit_bias",), ()),
    "banned": ({"banned": [1, 3, 8]}, ("banned",), ()),
    "allowed": ({"allowed": [0, 2, 4, 5, 11, 14]}, ("allowed",), ()),
    "min_tokens": ({"min_tokens": 3}, ("min_tokens",), (4, 7, 10)),
    "carried": ({"carried": 2, "frequency_penalty": 1.2, "min_tokens": 4}, ("carried",), (4, 7, 10)),
}
"""Rules that change logits: each with what its negative control drops, and the stop ids it needs."""

ENDS: tuple[int, ...] = (15,)
"""What a text in the grammar of halves ends with."""


def _halves(output: Sequence[int]) -> Collection[int]:
    if len(output) % 2:
        return range(7, 15) if output[-1] < 7 else range(7)
    return range(16)


HALVES = Regex("([a-g][h-o]|[h-o][a-g])*", _halves)
"""Pairs of letters, one from each half of those that do not end the text."""

TOGETHER: dict[str, Any] = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.6,
    "logit_bias": [(2, 1.0), (6, -1.5)],
    "banned": [1],
    "allowed": [*range(14)],
    "min_tokens": 2,
}
"""All of them at once."""


def _sampled(mode: Mode) -> list[Case]:
    cases = [
        Case(mode, "temperature 1", {"temperature": 1.0}),
        Case(mode, "temperature 0.6", {"temperature": 0.6}, ("temperature",)),
        Case(mode, "stop ids", {"temperature": 1.0}, stop_ids=(4, 7, 10)),
        Case(mode, "two tokens", odds(0.6, 0.4), drafter=odds(0.8, 0.2), sharpness=0.0),
        Case(mode, "top_k", {"temperature": 1.0, "top_k": 6}, ("top_k",)),
        Case(mode, "top_p", {"temperature": 1.2, "top_p": 0.8}, ("top_p",)),
        Case(mode, "min_p", {"temperature": 1.0, "min_p": 0.2}, ("min_p",)),
    ]
    cases += [
        Case(mode, what, {"temperature": 1.0} | rules, dropped, stop_ids)
        for what, (rules, dropped, stop_ids) in SHAPING.items()
    ]
    held = Case(mode, "grammar", {"temperature": 1.0}, ("grammar",), ENDS, grammar=HALVES)
    truncated = {"temperature": 0.9, "top_k": 10, "top_p": 0.92, "min_p": 0.02}
    return [*cases, held, Case(mode, "all rules", truncated | TOGETHER, ("frequency_penalty",), (4, 7))]


def _greedy() -> list[Case]:
    cases = [Case("greedy", "no rules", {}), Case("greedy", "stop ids", {}, stop_ids=(4, 7, 10))]
    cases += [
        Case("greedy", what, rules, dropped, stop_ids) for what, (rules, dropped, stop_ids) in SHAPING.items()
    ]
    held = Case("greedy", "grammar", {}, ("grammar",), ENDS, grammar=HALVES)
    return [*cases, held, Case("greedy", "all rules", TOGETHER, ("frequency_penalty",), (4, 7))]


CASES = [*_greedy(), *_sampled("coupled"), *_sampled("residual")]
