"""The model's side of one request: its KV, its rules, and the row that waits for the edge's token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from acespec_edge import _core
from acespec_edge.errors import PeerError, UsageError
from acespec_edge.grammar import Grammar
from acespec_edge.protocol import ROOT
from cloud_stub.actions import Verify
from cloud_stub.continuation import Continuation
from cloud_stub.judge import Ruling, Terms, judge, logprobs_of
from cloud_stub.rejection import Rejection
from cloud_stub.residual import judge_residual
from cloud_stub.verifiers.base import Handle, Rows, Verifier


def compiled(terms: Terms, verifier: Verifier, carried: Sequence[int]) -> Grammar | None:
    """The grammar of a request, behind the output that it goes on with; takes up to seconds.

    Raises UsageError for a grammar that does not do, or that the carried output does not keep to.
    """
    if terms.grammar_kind == _core.Grammar.none:
        return None
    kind = terms.grammar_kind.name
    grammar = Grammar.compile(kind, terms.grammar, verifier.vocabulary, terms.stop_ids)
    try:
        grammar.commit(carried)
    except PeerError as error:
        raise UsageError(f"the output to go on with does not keep to the grammar: {error}") from error
    return grammar


class Work:
    """Used by one thread at a time, the scheduler's."""

    def __init__(
        self,
        handle: Handle,
        sampler: _core.Sampler,
        terms: Terms,
        prompt: Sequence[int],
        grammar: Grammar | None,
        continuation: Continuation | None = None,
    ) -> None:
        """Works with the handle, which stays the caller's. ``continuation``: of plain steps. Raises
        UsageError for rules that do not fit the vocabulary.
        """
        self._handle = handle
        self._sampler = sampler
        self._terms = terms
        self._grammar = grammar
        self._continuation = continuation
        self._shaper = _core.LogitShaper(sampler.vocabulary, terms.rules, prompt, list(terms.stop_ids))
        self._rejection: Rejection | None = None

    def prefill(self, tokens: Sequence[int]) -> Rows:
        """Reads a part of the prompt."""
        return self._handle.prefill(tokens)

    def first(self, rows: Rows) -> Ruling:
        """Rules on the first token, given the last of the prompt's rows."""
        ruling = judge(rows, self._terms.prompt_length, [], [], self._terms, self._sampler, self._shape)
        self._commit(ruling.tokens)
        return ruling

    def verify(self, asked: Verify) -> Ruling:
        """Commits what the edge has drawn, then verifies and rules."""
        drawn = [] if asked.resampled is None else self._drawn(asked.resampled)
        if asked.finish != _core.Finish.none:
            return Ruling([], None, asked.finish, drawn)
        ruling = self._step(asked) if not asked.tokens else self._tree(asked)
        self._commit([*(asked.tokens[node] for node in ruling.path), *ruling.tokens])
        self._rejection = ruling.rejection
        hint = self._hint(asked, ruling) if asked.hint and ruling.finish == _core.Finish.none else []
        return replace(ruling, logprobs=drawn + ruling.logprobs, hint=hint)

    def more_samples(self) -> Ruling:
        """The row that waits, with other samples of its tail."""
        assert self._rejection is not None
        self._rejection = self._rejection.more()
        return Ruling([], None, _core.Finish.none, rejection=self._rejection)

    def _tree(self, asked: Verify) -> Ruling:
        terms, sampler, tokens = self._terms, self._sampler, asked.tokens
        rows = self._handle.verify(asked.tip, tokens, asked.parents)
        if terms.mode == _core.Mode.residual:
            ruling = judge_residual(rows, asked.base, tokens, asked.weights, terms, sampler, self._shape)
        else:
            ruling = judge(rows, asked.base, tokens, asked.parents, terms, sampler, self._shape)
        self._handle.keep(ruling.path)
        return ruling

    def _step(self, asked: Verify) -> Ruling:
        """A plain step, with what the cloud has drafted itself. The target chooses by the coupled noise, in
        residual mode too, where no token of the edge's is at stake.
        """
        drafted: list[int] = []
        if self._continuation is not None:
            # A node whose token would be the last, or lie past it, could not be accepted.
            room = self._terms.end - asked.base - 1
            drafted = self._continuation.draft(self._handle, asked.tip, asked.base, room)
        parents = list(range(ROOT, len(drafted) + ROOT))
        rows = self._handle.verify(asked.tip, drafted, parents)
        ruling = judge(rows, asked.base, drafted, parents, self._terms, self._sampler, self._shape)
        self._handle.keep(ruling.path)
        if self._continuation is not None:
            self._continuation.judged(drafted, len(ruling.path))
        return replace(ruling, path=[], own=[drafted[node] for node in ruling.path], own_nodes=len(drafted))

    def _hint(self, asked: Verify, ruling: Ruling) -> list[int]:
        """What may follow the tokens just committed."""
        if self._continuation is None:
            return []
        length = asked.base + len(ruling.path) + len(ruling.tokens)
        tip, room = ruling.tokens[-1], self._terms.end - length - 1
        return self._continuation.hint(self._handle, tip, length, room, len(ruling.path) + 1)

    def _drawn(self, token: int) -> list[_core.TokenLogprob]:
        rejection, self._rejection = self._rejection, None
        assert rejection is not None
        if not rejection.p[token] > 0:
            raise UsageError(
                f"Draft.resampled is {token}, which the target rules out at position {rejection.position}"
            )
        self._commit([token])
        return logprobs_of([rejection.logits], [token], self._terms, self._sampler)

    def _shape(self, row: Rows, path: Sequence[int]) -> Rows:
        mask = None if self._grammar is None else self._grammar.mask(path)
        return self._shaper.shape(row, path, mask)

    def _commit(self, tokens: Sequence[int]) -> None:
        self._shaper.commit(tokens)
        if self._grammar is not None:
            self._grammar.commit(tokens)
