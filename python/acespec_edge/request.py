"""One request: the prompt as token ids, the rules, and where it ends."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, get_args

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.errors import UsageError
from acespec_edge.prompt import Prompt, prompt_ids
from acespec_edge.stops import StopStrings

Mode = Literal["auto", "cloud", "edge"]

MODES: Final[tuple[str, ...]] = get_args(Mode)


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request, ready to run."""

    prompt: list[int]
    rules: _core.SamplingRules
    max_tokens: int
    stop_ids: list[int]
    stops: tuple[str, ...]
    mode: Mode


class Options(TypedDict, total=False):
    """What a caller may say about a request, and what holds when nothing is said."""

    max_tokens: int
    """Tokens generated at most, 256."""
    temperature: float
    """0: greedy, the default."""
    top_k: int
    """Keep the k likeliest tokens; 0, the default, keeps all."""
    top_p: float
    """Keep the smallest head of this mass, in (0, 1]; 1."""
    min_p: float
    """Drop tokens under this share of the likeliest, in [0, 1]; 0."""
    seed: int | None
    """Key of the sampling noise, 0 to 2**64 - 1; None, the default, draws one, and the stats tell it."""
    stop: str | Sequence[str] | None
    """Up to 16 strings; the text ends before the first that appears. None."""
    mode: Mode | None
    """Instead of the runtime's."""
    raw: bool
    """Take a text prompt as it is, without the chat template; False."""
    tools: Sequence[Mapping[str, Any]] | None
    """JSON schemas of functions, for the chat template; None."""
    continue_final_message: bool
    """Let the model go on inside the last chat message instead of answering it; False."""


def make_request(
    bundle: Bundle,
    prompt: Prompt,
    default_mode: Mode,
    *,
    max_tokens: int = 256,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int | None = None,
    stop: str | Sequence[str] | None = None,
    mode: Mode | None = None,
    raw: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    continue_final_message: bool = False,
) -> Request:
    """Raises UsageError naming the first field that is wrong."""
    taken: Mode = default_mode if mode is None else mode
    checked_mode(taken)
    if not 1 <= max_tokens < 1 << 32:
        raise UsageError(f"max_tokens is {max_tokens}: it must be 1 to 2**32 - 1")
    if seed is not None and not 0 <= seed < 1 << 64:
        raise UsageError(f"seed is {seed}: it must be 0 to 2**64 - 1")
    rules = _core.SamplingRules(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        # 53 bits, so that a seed survives JSON readers that keep numbers as doubles.
        seed=secrets.randbits(53) if seed is None else seed,
    )
    rules.validate()
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    StopStrings(stops)
    return Request(
        prompt=prompt_ids(
            bundle, prompt, raw=raw, tools=tools, continue_final_message=continue_final_message
        ),
        rules=rules,
        max_tokens=max_tokens,
        stop_ids=list(bundle.eos_ids),
        stops=stops,
        mode=taken,
    )


def checked_mode(mode: str) -> None:
    """Raises UsageError unless ``mode`` is one of MODES."""
    if mode not in MODES:
        raise UsageError(f"mode is {mode!r}: it must be one of {', '.join(MODES)}")
