"""The decision itself: which drafted tokens the target would have produced, what follows them, and
whether it ends.

The coupled rule is exact for any drafter: at every node the target's own choice is made first, from the
target's logits and the request's shared noise, and a drafted child is accepted only because it *is* that
choice. The drafter can change how many tokens a forward yields, never which. The residual rule is in
residual.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from acespec_edge import _core
from acespec_edge.errors import EngineError
from acespec_edge.protocol import ROOT, child_of
from cloud_stub.logprobs import token_logprob
from cloud_stub.rejection import Rejection
from cloud_stub.verifiers.base import Rows

Shape = Callable[[Rows, Sequence[int]], Rows]
"""A row of logits, float32 [>= V], and the drafted tokens that lead to it -> the row that the rules leave."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a request asked for. Lengths count tokens; ``max_context`` covers prompt and output.

    ``logprobs``: alternatives reported with every token; -1 for no report. ``grammar``: its text, of
    ``grammar_kind``.
    """

    rules: _core.SamplingRules
    stop_ids: frozenset[int]
    prompt_length: int
    max_tokens: int
    max_context: int
    mode: _core.Mode = _core.Mode.coupled
    logprobs: int = -1
    grammar_kind: _core.Grammar = _core.Grammar.none
    grammar: str = ""

    @property
    def end(self) -> int:
        """Committed length at which the request ends for want of room."""
        return min(self.prompt_length + self.max_tokens, self.max_context)

    def finish(self, token: int, length: int) -> _core.Finish:
        """Why the request ends once ``token`` made the committed length ``length``; stop goes before
        length.
        """
        if token in self.stop_ids:
            return _core.Finish.stop
        if length >= self.prompt_length + self.max_tokens:
            return _core.Finish.length
        if length >= self.max_context:
            return _core.Finish.context
        return _core.Finish.none


@dataclass(frozen=True, slots=True)
class Ruling:
    """``path``: accepted nodes from the first level down. ``token``: the one committed after them; None
    where the edge has to draw it (``rejection``), or where the request had ended before.

    A token that ends the request is never part of the path. ``logprobs``: one for each token committed, when
    the terms ask for them. ``own``: accepted before ``token``, of the ``own_nodes`` that the cloud had
    drafted itself; then the path is empty. ``reused``: of the first ruling, prompt tokens whose KV was there.
    ``hint``: what the cloud thinks that follows.
    """

    path: list[int]
    token: int | None
    finish: _core.Finish
    logprobs: list[_core.TokenLogprob] = field(default_factory=list)
    rejection: Rejection | None = None
    own: list[int] = field(default_factory=list)
    own_nodes: int = 0
    reused: int = 0
    hint: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """What is committed after the path."""
        return self.own if self.token is None else [*self.own, self.token]


def as_it_is(row: Rows, path: Sequence[int]) -> Rows:
    """The row itself, for a request without rules that change logits."""
    return row


def judge(
    rows: Rows,
    base: int,
    tokens: Sequence[int],
    parents: Sequence[int],
    terms: Terms,
    sampler: _core.Sampler,
    shape: Shape = as_it_is,
) -> Ruling:
    """Walks the tree for as long as the target's choice is among the children.

    ``rows``: float32 [1 + len(tokens), V], as ``Handle.verify`` returns them. ``base``: committed length
    before the verification, hence the position of the first token chosen. O(V) per accepted token. Raises
    EngineError naming the position when a row cannot be drawn from.
    """
    path: list[int] = []
    walked: list[int] = []
    node = ROOT
    while True:
        position = base + len(path)
        token = choose(rows[node + 1], walked, position, terms, sampler, shape)
        finish = terms.finish(token, position + 1)
        child = child_of(node, token, tokens, parents, node + 1) if finish == _core.Finish.none else ROOT
        if child == ROOT:
            seen = [rows[at + 1] for at in (ROOT, *path)]
            return Ruling(path, token, finish, logprobs_of(seen, [*walked, token], terms, sampler))
        path.append(child)
        walked.append(token)
        node = child


def choose(
    row: Rows, walked: Sequence[int], position: int, terms: Terms, sampler: _core.Sampler, shape: Shape
) -> int:
    """The target's own choice at ``position``, behind the drafted tokens ``walked``."""
    try:
        return sampler.choose(shape(row, walked), terms.rules, position)
    except EngineError as error:
        raise EngineError(f"no token can be chosen at position {position}: {error}") from error


def logprobs_of(
    rows: Sequence[Rows], tokens: Sequence[int], terms: Terms, sampler: _core.Sampler
) -> list[_core.TokenLogprob]:
    """The reports that the terms ask for, on each token at its row."""
    if terms.logprobs < 0:
        return []
    return [
        token_logprob(row[: sampler.vocabulary], token, terms.logprobs)
        for row, token in zip(rows, tokens, strict=True)
    ]
