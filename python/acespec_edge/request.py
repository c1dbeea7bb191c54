"""One request: the prompt as token ids, the rules, and where it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypedDict, get_args

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.errors import UsageError
from acespec_edge.grammar_text import GrammarText, grammar_text
from acespec_edge.prompt import Prompt, prompt_ids
from acespec_edge.result import Result
from acespec_edge.rules import carrying, make_rules
from acespec_edge.stops import StopStrings

Mode = Literal["auto", "cloud", "edge"]
Sampling = Literal["coupled", "residual"]

MODES: Final[tuple[str, ...]] = get_args(Mode)
SAMPLINGS: Final[tuple[str, ...]] = get_args(Sampling)

MAX_LOGPROBS: Final = 20
"""Alternatives of one token."""


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request, ready to run. ``earlier``: the output it goes on with, at the end of ``prompt``."""

    prompt: list[int]
    rules: _core.SamplingRules
    max_tokens: int
    stop_ids: list[int]
    stops: tuple[str, ...]
    mode: Mode
    sampling: Sampling = "coupled"
    logprobs: int | None = None
    grammar: GrammarText | None = None
    earlier: tuple[int, ...] = ()


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
    repetition_penalty: float
    """Divides the logits above 0 of tokens in prompt or output, and multiplies the others; above 0; 1."""
    presence_penalty: float
    """Taken off the logits of tokens in the output, in [-2, 2]; 0."""
    frequency_penalty: float
    """Taken off as often as a token is in the output, in [-2, 2]; 0."""
    logit_bias: Mapping[int, float] | None
    """Added to the logits of these tokens; None."""
    banned_tokens: Sequence[int] | None
    """Never come; None."""
    allowed_tokens: Sequence[int] | None
    """No others come; None."""
    min_tokens: int
    """Tokens of output before which no end-of-sequence token comes; 0."""
    ignore_eos: bool
    """Go on after an end-of-sequence token as after any other; False."""
    stop: str | Sequence[str] | None
    """Up to 16 strings; the text ends before the first that appears. None."""
    logprobs: int | None
    """Report every token's log-probability under the target, and of so many likeliest, 0 to 20; None."""
    json_schema: Mapping[str, Any] | str | None
    """The text is JSON that this schema describes; None."""
    regex: str | None
    """The text matches this regular expression (Rust's syntax) as a whole; None."""
    sampling: Sampling
    """"coupled", the default: target and drafter share their random numbers. "residual": the target accepts
    by min(1, p/q), and this device draws what comes instead. The output's distribution is the same, but which
    output a seed gives depends on the drafts, too."""
    continue_from: Result | Sequence[int] | None
    """Go on behind this output of the same prompt, which the rules count as output. By the same options and
    seed (a result's own by default), and coupled sampling, what comes is what an unbroken request has there.
    Stop strings are looked for in what comes. None."""
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
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    banned_tokens: Sequence[int] | None = None,
    allowed_tokens: Sequence[int] | None = None,
    min_tokens: int = 0,
    ignore_eos: bool = False,
    stop: str | Sequence[str] | None = None,
    logprobs: int | None = None,
    json_schema: Mapping[str, Any] | str | None = None,
    regex: str | None = None,
    sampling: Sampling = "coupled",
    continue_from: Result | Sequence[int] | None = None,
    mode: Mode | None = None,
    raw: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    continue_final_message: bool = False,
) -> Request:
    """Raises UsageError naming the first field that is wrong."""
    taken: Mode = default_mode if mode is None else mode
    checked_mode(taken)
    if sampling not in SAMPLINGS:
        raise UsageError(f"sampling is {sampling!r}: it must be one of {', '.join(SAMPLINGS)}")
    if not 1 <= max_tokens < 1 << 32:
        raise UsageError(f"max_tokens is {max_tokens}: it must be 1 to 2**32 - 1")
    _check_logprobs(logprobs, taken)
    stop_ids = [] if ignore_eos else list(bundle.eos_ids)
    grammar = grammar_text(json_schema, regex)
    if grammar is not None and not stop_ids:
        raise UsageError(
            f"{grammar.kind}: a text ends with an end-of-sequence token where it may end, and "
            + ("ignore_eos is set" if ignore_eos else f"{bundle.name} has none")
        )
    earlier: tuple[int, ...] = ()
    if isinstance(continue_from, Result):
        earlier = (*continue_from.earlier_ids, *continue_from.token_ids)
        seed = continue_from.stats.seed if seed is None else seed
    elif continue_from is not None:
        earlier = tuple(prompt_ids(bundle, list(continue_from))) if len(continue_from) else ()
    rules = make_rules(
        bundle.vocabulary_table.size,
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=logit_bias,
        banned_tokens=banned_tokens,
        allowed_tokens=allowed_tokens,
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        carried=len(earlier),
    )
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    StopStrings(stops)
    ids = prompt_ids(bundle, prompt, raw=raw, tools=tools, continue_final_message=continue_final_message)
    return Request(
        prompt=[*ids, *earlier],
        rules=rules,
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        stops=stops,
        mode=taken,
        sampling=sampling,
        logprobs=logprobs,
        grammar=grammar,
        earlier=earlier,
    )


def resumed(request: Request, committed: Sequence[int]) -> Request:
    """What is left of ``request`` behind ``committed`` tokens of output, fewer than its ``max_tokens``."""
    if not committed:
        return request
    return replace(
        request,
        prompt=[*request.prompt, *committed],
        rules=carrying(request.rules, len(committed)),
        max_tokens=request.max_tokens - len(committed),
        earlier=(*request.earlier, *committed),
    )


def checked_mode(mode: str) -> None:
    """Raises UsageError unless ``mode`` is one of MODES."""
    if mode not in MODES:
        raise UsageError(f"mode is {mode!r}: it must be one of {', '.join(MODES)}")


def _check_logprobs(logprobs: int | None, mode: Mode) -> None:
    if logprobs is None:
        return
    if not 0 <= logprobs <= MAX_LOGPROBS:
        raise UsageError(f"logprobs is {logprobs}: it must be 0 to {MAX_LOGPROBS}, or None")
    if mode == "edge":
        raise UsageError("logprobs are the target's: mode 'edge' has none; use 'auto' or 'cloud'")
