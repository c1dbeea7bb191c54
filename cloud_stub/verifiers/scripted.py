"""A target that is a pure function of the tokens: exact, instant, and easy to reason about in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from acespec_edge.errors import UsageError
from acespec_edge.protocol import path_to
from acespec_edge.vocabulary import Vocabulary
from cloud_stub.verifiers.base import Rows

LogitsOf = Callable[[Sequence[int]], Rows]
"""Logits of the token that follows the given ones, float32 [V]."""


class ScriptedVerifier:
    """Serves ``logits_of`` as a target. A handle keeps the tokens themselves where a model keeps KV."""

    def __init__(
        self,
        logits_of: LogitsOf,
        vocabulary: Vocabulary,
        *,
        logits_width: int | None = None,
        max_context: int = 4096,
        name: str = "scripted",
    ) -> None:
        self.name = name
        self.vocabulary = vocabulary
        self.logits_width = vocabulary.size if logits_width is None else logits_width
        self.max_context = max_context
        self._logits_of = logits_of

    def open(self) -> ScriptedHandle:
        """A handle with an empty context."""
        return ScriptedHandle(self._logits_of, self.logits_width)


class ScriptedHandle:
    """Follows the contract of ``Handle`` to the letter, and complains when a caller does not."""

    def __init__(self, logits_of: LogitsOf, logits_width: int) -> None:
        self._logits_of = logits_of
        self._logits_width = logits_width
        self._committed: list[int] = []
        self._pending: tuple[int, list[int], list[int]] | None = None
        self._closed = False

    @property
    def length(self) -> int:
        """Tokens committed, the tip not counted."""
        return len(self._committed)

    def prefill(self, tokens: Sequence[int]) -> Rows:
        """See ``Handle.prefill``."""
        self._require(pending=False)
        if not tokens:
            raise UsageError("prefill of no tokens: at least one is needed")
        self._committed.extend(tokens)
        return self._rows([self._committed])

    def verify(self, tip: int, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        """See ``Handle.verify``."""
        self._require(pending=False)
        context = [*self._committed, tip]
        self._pending = (tip, list(tokens), list(parents))
        paths = [path_to(node, parents) for node in range(len(tokens))]
        return self._rows([context, *([*context, *(tokens[node] for node in path)] for path in paths)])

    def keep(self, path: Sequence[int]) -> None:
        """See ``Handle.keep``."""
        self._require(pending=True)
        assert self._pending is not None
        tip, tokens, parents = self._pending
        if list(path) != (path_to(path[-1], parents) if path else []):
            raise UsageError(f"keep({list(path)}): not a path from the root")
        self._committed += [tip, *(tokens[node] for node in path)]
        self._pending = None

    def crop(self, length: int) -> None:
        """See ``KeptHandle.crop``."""
        self._check_length(length)
        del self._committed[length:]
        self._pending = None

    def branch(self, length: int) -> ScriptedHandle:
        """See ``KeptHandle.branch``."""
        self._check_length(length)
        other = ScriptedHandle(self._logits_of, self._logits_width)
        other._committed = self._committed[:length]
        return other

    def close(self) -> None:
        """See ``Handle.close``."""
        self._closed = True

    def _check_length(self, length: int) -> None:
        if self._closed or not 0 <= length <= len(self._committed):
            state = "closed" if self._closed else f"at {len(self._committed)}"
            raise UsageError(f"length is {length}: the handle is {state}")

    def _require(self, *, pending: bool) -> None:
        if self._closed:
            raise UsageError("the handle is closed")
        if (self._pending is not None) != pending:
            raise UsageError("keep must follow verify" if not pending else "keep without verify")

    def _rows(self, contexts: Sequence[Sequence[int]]) -> Rows:
        rows = np.stack([np.asarray(self._logits_of(context), dtype=np.float32) for context in contexts])
        if rows.shape[1] != self._logits_width:
            raise UsageError(f"logits_of returned {rows.shape[1]} logits, not {self._logits_width}")
        return np.ascontiguousarray(rows)
