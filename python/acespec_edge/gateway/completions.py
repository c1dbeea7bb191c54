"""Completions of plain text or token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from acespec_edge.gateway.answers import FINISH, Choice
from acespec_edge.gateway.errors import bad_request
from acespec_edge.gateway.logprobs import CompletionLogprobs
from acespec_edge.gateway.options import wish_of
from acespec_edge.gateway.schema import MAX_CHOICES, CompletionRequest
from acespec_edge.gateway.service import Gateway, Job
from acespec_edge.logprobs import TokenLogprob
from acespec_edge.prompt import Prompt
from acespec_edge.result import Piece, Result
from acespec_edge.vocabulary import Vocabulary

_MAX_TOKENS = 16
"""OpenAI's default."""


async def completion_jobs(gateway: Gateway, asked: CompletionRequest) -> list[Job]:
    """The generations of a completion request. Raises ApiError and UsageError for what is wrong with it."""
    _check(asked)
    wish = wish_of(asked, logprobs=asked.logprobs, max_tokens=asked.max_tokens or _MAX_TOKENS)
    prompts = _prompts(asked.prompt)
    if len(prompts) * wish.n > MAX_CHOICES:
        raise bad_request(
            f"n is {wish.n} for {len(prompts)} prompts: {MAX_CHOICES} choices together are the most", "n"
        )
    return await gateway.jobs(prompts, wish, raw=True)


def completion_form(gateway: Gateway, asked: CompletionRequest) -> CompletionForm:
    """How the answer to ``asked`` is written."""
    bundle = gateway.edge.bundle
    stop_ids = frozenset[int]() if asked.ignore_eos else frozenset(bundle.eos_ids)
    return CompletionForm(bundle.vocabulary_table, stop_ids)


class CompletionForm:
    """A Form. Log-probabilities leave the end-of-sequence token out, which is no part of the text. Not
    thread-safe."""

    prefix = "cmpl"
    whole_kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(self, vocabulary: Vocabulary, stop_ids: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._stop_ids = stop_ids
        self._logprobs = CompletionLogprobs(vocabulary)

    def begin(self, index: int) -> list[Choice]:
        self._logprobs = CompletionLogprobs(self._vocabulary)
        return []

    def piece(self, index: int, piece: Piece) -> list[Choice]:
        block = self._block(piece.logprobs)
        return [_choice(index, piece.text, block, None)] if piece.text or block else []

    def end(self, index: int, result: Result) -> list[Choice]:
        return [_choice(index, "", None, FINISH[result.finish_reason])]

    def whole(self, index: int, result: Result) -> Choice:
        self._logprobs = CompletionLogprobs(self._vocabulary)
        return _choice(index, result.text, self._block(result.logprobs), FINISH[result.finish_reason])

    def _block(self, entries: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
        if entries is None:
            return None
        shown = [entry for entry in entries if entry.token not in self._stop_ids]
        return self._logprobs.block(shown)


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> Choice:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _check(asked: CompletionRequest) -> None:
    n = asked.n or 1
    for name, value, right in (
        ("echo", asked.echo, asked.echo in (None, False)),
        ("suffix", asked.suffix, asked.suffix in (None, "")),
        ("best_of", asked.best_of, asked.best_of in (None, 1, n)),
    ):
        if not right:
            raise bad_request(f"{name} is {value!r}: it is not supported, leave it out", name)


def _prompts(given: Any) -> list[Prompt]:
    """The prompts in the four forms that they may have: a text, texts, token ids, lists of token ids."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        if all(_is_id(part) for part in given):
            return [cast("list[int]", given)]
        if all(isinstance(part, str) for part in given):
            return cast("list[Prompt]", given)
        if all(isinstance(part, list) and all(_is_id(token) for token in part) for part in given):
            return cast("list[Prompt]", given)
    shown = "missing" if given is None else f"{given!r:.80}"
    raise bad_request(f"prompt is {shown}: it must be a text, token ids, or a list of either", "prompt")


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
