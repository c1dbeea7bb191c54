"""The decision itself: which drafted tokens the target would have produced, what follows them, and
whether it ends.

The rule is exact for any drafter: at every node the target's own choice is made first, from the target's
logits and the request's shared noise, and a drafted child is accepted only because it *is* that choice.
The drafter can change how many tokens a forward yields, never which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acespec_edge._core import Finish, Sampler, SamplingRules
from acespec_edge.errors import EngineError
from acespec_edge.protocol import ROOT, child_of
from cloud_stub.verifiers.base import Rows


@dataclass(frozen=True, slots=True)
class Terms:
    """What a request asked for. Lengths count tokens; ``max_context`` covers prompt and output."""

    rules: SamplingRules
    stop_ids: frozenset[int]
    prompt_length: int
    max_tokens: int
    max_context: int

    @property
    def end(self) -> int:
        """Committed length at which the request ends for want of room."""
        return min(self.prompt_length + self.max_tokens, self.max_context)

    def finish(self, token: int, length: int) -> Finish:
        """Why the request ends once ``token`` made the committed length ``length``; stop goes before
        length.
        """
        if token in self.stop_ids:
            return Finish.stop
        if length >= self.prompt_length + self.max_tokens:
            return Finish.length
        if length >= self.max_context:
            return Finish.context
        return Finish.none


@dataclass(frozen=True, slots=True)
class Ruling:
    """``path``: accepted nodes from the first level down. ``token``: the one committed after them.

    A token that ends the request is never part of the path, so every ruling commits ``len(path) + 1``
    tokens.
    """

    path: list[int]
    token: int
    finish: Finish


def judge(
    rows: Rows, base: int, tokens: Sequence[int], parents: Sequence[int], terms: Terms, sampler: Sampler
) -> Ruling:
    """Walks the tree for as long as the target's choice is among the children.

    ``rows``: float32 [1 + len(tokens), V], as ``Handle.verify`` returns them. ``base``: committed length
    before the verification, hence the position of the first token chosen. O(V) per accepted token. Raises
    EngineError naming the position when a row cannot be drawn from.
    """
    path: list[int] = []
    node = ROOT
    while True:
        position = base + len(path)
        try:
            token = sampler.choose(rows[node + 1], terms.rules, position)
        except EngineError as error:
            raise EngineError(f"no token can be chosen at position {position}: {error}") from error
        finish = terms.finish(token, position + 1)
        child = child_of(node, token, tokens, parents, node + 1) if finish == Finish.none else ROOT
        if child == ROOT:
            return Ruling(path, token, finish)
        path.append(child)
        node = child
