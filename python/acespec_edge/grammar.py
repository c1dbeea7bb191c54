"""Output held to a grammar: which tokens may come next, along every path of a tree."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from acespec_edge.errors import EngineError, PeerError, UsageError
from acespec_edge.grammar_source import grammar_source
from acespec_edge.vocabulary import Vocabulary

Words = npt.NDArray[np.uint32]
"""A mask over the vocabulary: token t is allowed when bit t % 32 of word t // 32 is set."""

_Found = TypeVar("_Found")

_MAX_STATES: Final = 50_000
"""Of the automaton behind the terminals, one to two kB each; it grows with what has been looked at."""


class Grammar:
    """Where an output stands in its grammar. A mask costs O(tokens that differ from the path before).

    The mask of a path depends on the vocabulary's bytes, the grammar and the path alone, so the drafter and
    the target have the same ones. Special tokens are never part of the text; a stop id is allowed exactly
    where the text may end. For one thread at a time.
    """

    def __init__(
        self, start: Callable[[], LLMatcher], vocabulary_size: int, stop_ids: Collection[int]
    ) -> None:
        """For `compile`; `start` makes a matcher that has seen nothing."""
        self._start = start
        self._matcher = start()
        self._stop_ids = frozenset(stop_ids)
        self._end = vocabulary_size
        stops = np.zeros(-(-vocabulary_size // 32) * 32, np.bool_)
        stops[list(self._stop_ids)] = True
        self._stops = _packed(stops)
        self._plain = _packed(~stops & (np.arange(len(stops)) < vocabulary_size))
        self._committed: list[int] = []
        self._path: list[int] = []  # what the matcher has seen beyond the committed tokens
        self._ended = False

    @classmethod
    def compile(cls, kind: str, text: str, vocabulary: Vocabulary, stop_ids: Collection[int]) -> Grammar:
        """The grammar `text` of a `kind` ("json_schema" or "regex"), before the first output token.

        A regular expression (Rust's syntax, Unicode) must match the whole text. Raises UsageError for a
        grammar that is malformed, too large, or that no text of this vocabulary satisfies, and for
        `stop_ids` that are empty or outside the vocabulary.
        """
        if not stop_ids:
            raise UsageError("stop_ids is empty: a grammar needs a stop id to end with")
        for token in stop_ids:
            if not 0 <= token < vocabulary.size:
                raise UsageError(f"stop_ids: {token} is not in the vocabulary, 0 to {vocabulary.size - 1}")
        source = grammar_source(kind, text, vocabulary.leading_spaces)
        tokenizer = _tokenizer(vocabulary)
        limits = LLParserLimits(max_lexer_states=_MAX_STATES, verbose_errors=False)

        def start() -> LLMatcher:
            return LLMatcher(tokenizer, source, log_level=0, limits=limits)

        grammar = cls(start, vocabulary.size, stop_ids)
        first = grammar._matcher.compute_bitmask()
        problem = _problem(grammar._matcher)
        if problem is None and not grammar._shaped(first).any():
            problem = "no token of this vocabulary can begin a text that satisfies it"
        if problem is not None:
            raise UsageError(f"{kind}: {problem}")
        return grammar

    @property
    def allows_end(self) -> bool:
        """Whether the committed text satisfies the grammar as it is."""
        return not self._ended and bool(self._behind([], LLMatcher.is_accepting))

    def accepts(self, token: int) -> bool:
        """Whether `token` may follow the committed tokens. Raises what `mask` does."""
        if token in self._stop_ids:
            return self.allows_end
        if self._ended or not 0 <= token < self._end:
            return False
        return self._behind([], lambda matcher: matcher.validate_tokens([token])) == 1

    def mask(self, path: Sequence[int]) -> Words | None:
        """The tokens allowed after the committed ones and `path`, ceil(vocabulary / 32) words of its own.

        None, nothing is masked, where the text has ended or left the grammar: nothing there can be committed.
        Raises EngineError when the grammar has grown too large to follow.
        """
        raw = None if self._ended else self._behind(path, LLMatcher.compute_bitmask)
        return None if raw is None else self._shaped(raw)

    def commit(self, tokens: Sequence[int]) -> None:
        """Moves on by `tokens`, for good. Raises PeerError for the first that the grammar does not allow;
        those before it are committed then. Raises what `mask` does."""
        for token in tokens:
            if not self.accepts(token):
                raise PeerError(
                    f"output token {len(self._committed)} is {token}, which the grammar does not allow there"
                )
            self._ended = token in self._stop_ids
            if not self._ended:
                self._move([token])
                self._path.clear()
            self._committed.append(token)

    def _behind(self, path: Sequence[int], look: Callable[[LLMatcher], _Found]) -> _Found | None:
        """What `look` finds behind the committed tokens and `path`; None when `path` cannot go there."""
        for fresh in (False, True):
            if fresh:
                # What the matcher has kept of paths long gone may be all that is too large.
                self._matcher = self._start()
                self._path.clear()
                self._matcher.consume_tokens(self._committed)
            found = look(self._matcher) if self._move(path) else None
            problem = _problem(self._matcher)
            if problem is None:
                return found
        raise EngineError(f"grammar: cannot go on after output token {len(self._committed)} ({problem})")

    def _move(self, path: Sequence[int]) -> bool:
        """Puts the matcher behind the committed tokens and as much of `path` as the grammar allows; whether
        that is all of it."""
        kept = _common(self._path, path)
        if len(self._path) > kept:
            self._matcher.rollback(len(self._path) - kept)
            del self._path[kept:]
        tokens = list(path[kept:])
        if any(token in self._stop_ids or not 0 <= token < self._end for token in tokens):
            return False
        taken = self._matcher.try_consume_tokens(tokens)
        self._path += tokens[:taken]
        return taken == len(tokens)

    def _shaped(self, raw: bytes) -> Words:
        words = np.frombuffer(raw, np.dtype("<u4")).astype(np.uint32)
        ends = words[self._end >> 5] >> (self._end & 31) & 1
        allowed: Words = words[: len(self._plain)] & self._plain
        return allowed | self._stops if ends else allowed


class _Tokens:
    """A vocabulary as llguidance wants it; the id behind the last stands for the end of a text."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.size
        self.tokens = [*(vocabulary.token_bytes(token) for token in range(vocabulary.size)), b""]
        self.special_token_ids = [token for token in range(vocabulary.size) if vocabulary.is_special(token)]
        self.special_token_ids.append(vocabulary.size)

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("masks follow the bytes of tokens; no text is ever encoded")


_tokenizers: weakref.WeakKeyDictionary[Vocabulary, LLTokenizer] = weakref.WeakKeyDictionary()
_tokenizers_lock = threading.Lock()


def _tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """Made once for each vocabulary: up to a second for 150,000 tokens."""
    with _tokenizers_lock:
        tokenizer = _tokenizers.get(vocabulary)
        if tokenizer is None:
            tokenizer = LLTokenizer(TokenizerWrapper(_Tokens(vocabulary)))
            _tokenizers[vocabulary] = tokenizer
        return tokenizer


def _packed(bits: npt.NDArray[np.bool_]) -> Words:
    return np.packbits(bits, bitorder="little").view(np.dtype("<u4")).astype(np.uint32)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    length = min(len(one), len(other))
    return next((index for index in range(length) if one[index] != other[index]), length)


_REGEX_PREFIX: Final = re.compile(r"^at \d+\(\d+\): invalid regex .*? \(in regex\): ", re.DOTALL)


def _problem(matcher: LLMatcher) -> str | None:
    """What stopped the matcher, in a line; None when nothing did."""
    if not matcher.is_error():
        return None
    text = _REGEX_PREFIX.sub("", matcher.get_error())
    said = [line.removeprefix("error: ") for line in text.splitlines() if line.startswith("error: ")]
    line = (said or text.splitlines() or ["unknown"])[0].strip()
    # Settings that callers have no way to change.
    return line.partition(". Enable '")[0]
