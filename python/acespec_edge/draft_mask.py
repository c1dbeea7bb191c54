"""A request's grammar beside the drafter: for the target's drafts a hint, for the drafter alone the rule."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from acespec_edge.drafting import Drafter
from acespec_edge.errors import AcespecError, PeerError, UsageError
from acespec_edge.request import Request
from acespec_edge.vocabulary import Vocabulary

if TYPE_CHECKING:
    from acespec_edge.grammar import Grammar, Words

logger = logging.getLogger(__name__)


class Mask(Protocol):
    """Keeps a drafter's masks up with what is committed."""

    def commit(self, tokens: Sequence[int]) -> None: ...


class DraftMask:
    """Masks for tokens that the target judges anyway: one that cannot be had is done without."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar: Grammar | None = grammar

    def __call__(self, path: Sequence[int]) -> Words | None:
        grammar = self._grammar
        return None if grammar is None else self._tried(lambda: grammar.mask(path))

    def commit(self, tokens: Sequence[int]) -> None:
        """Follows the committed text."""
        if (grammar := self._grammar) is not None:
            self._tried(lambda: grammar.commit(tokens))

    def _tried(self, look: Callable[[], Words | None]) -> Words | None:
        try:
            return look()
        except AcespecError as error:
            logger.warning("drafting goes on without the grammar: %s", error)
            self._grammar = None
            return None


def hint(drafter: Drafter, request: Request, vocabulary: Vocabulary) -> Mask | None:
    """Holds the drafts of a request that has begun to its grammar; None when it has none. Raises UsageError
    for a grammar that the target would refuse."""
    grammar = _compiled(request, vocabulary)
    if grammar is None:
        return None
    mask = DraftMask(grammar)
    drafter.set_mask(mask)
    return mask


def rule(drafter: Drafter, request: Request, vocabulary: Vocabulary) -> Mask | None:
    """The same for a drafter whose tokens are the output: whatever goes wrong with the grammar ends it."""
    grammar = _compiled(request, vocabulary)
    if grammar is not None:
        drafter.set_mask(grammar.mask)
    return grammar


def _compiled(request: Request, vocabulary: Vocabulary) -> Grammar | None:
    if request.grammar is None:
        return None
    from acespec_edge.grammar import Grammar

    grammar = Grammar.compile(request.grammar.kind, request.grammar.text, vocabulary, request.stop_ids)
    carried = request.prompt[len(request.prompt) - request.rules.carried :]
    try:
        grammar.commit(carried)
    except PeerError as error:
        raise UsageError(f"continue_from does not keep to the grammar: {error}") from error
    return grammar
