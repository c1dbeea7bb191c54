"""What a verdict may say, given what was sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from acespec_edge import _core
from acespec_edge.errors import PeerError
from acespec_edge.protocol import ROOT, Match, match


@dataclass(frozen=True, slots=True)
class Terms:
    """What binds the output of a request. ``room``: tokens until the cloud's context is full."""

    stop_ids: frozenset[int]
    max_tokens: int
    vocabulary: int
    room: int


@dataclass(slots=True)
class SentDraft:
    """A draft (or the Open, as round 0) that waits for its verdict."""

    round: int
    first_node: int
    tokens: list[int]
    free_run: bool
    at: float
    opening: bool = False
    since: list[int] = field(default_factory=list)

    def rest(self) -> Match | None:
        """What is left of it after the tokens committed since it was sent; None when the cloud drops it."""
        return match(self.since, self.tokens, list(range(ROOT, len(self.tokens) - 1)))


def accepted_path(sent: SentDraft | None, verdict: _core.Verdict) -> list[int]:
    """Tokens from the committed end down to the accepted node."""
    if verdict.accepted_node == 0:
        return []
    rest = sent.rest() if sent is not None else None
    index = verdict.accepted_node - sent.first_node if sent is not None else ROOT
    if rest is None or index not in rest.nodes:
        raise PeerError(f"verdict accepts node {verdict.accepted_node}, which is not in the draft it answers")
    path = []
    walk = rest.nodes.index(index)
    while walk != ROOT:
        path.append(rest.tokens[walk])
        walk = rest.parents[walk]
    return path[::-1]


def check_tokens(tokens: Sequence[int], finish: _core.Finish, terms: Terms, generated: int) -> None:
    """Raises PeerError when a verdict may not commit ``tokens`` after ``generated`` output tokens, or not
    end so.
    """
    none, stop, length = _core.Finish.none, _core.Finish.stop, _core.Finish.length
    if not tokens and finish in (none, stop, length):
        raise PeerError("verdict commits no token and does not say that the request is over")
    for token in tokens:
        if not 0 <= token < terms.vocabulary:
            raise PeerError(f"verdict commits token {token}: the vocabulary has {terms.vocabulary}")
    total = generated + len(tokens)
    if total > terms.max_tokens or (total == terms.max_tokens and finish == none):
        raise PeerError(f"verdict commits token {total} without an end: max_tokens is {terms.max_tokens}")
    if finish == length and total != terms.max_tokens:
        raise PeerError(f"verdict ends for length after {total} tokens: max_tokens is {terms.max_tokens}")
    if total > terms.room:
        raise PeerError(f"verdict commits token {total}: the cloud's own context ends after {terms.room}")
    stops = [token in terms.stop_ids for token in tokens]
    if any(stops[:-1]) or (finish in (none, length) and any(stops)):
        raise PeerError("verdict goes on after a stop id")
    if finish == stop and not stops[-1]:
        raise PeerError(f"verdict ends for a stop id, but token {tokens[-1]} is none")
