"""What a verdict may say, given what was sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acespec_edge import _core
from acespec_edge.errors import PeerError
from acespec_edge.in_flight import Answered


@dataclass(frozen=True, slots=True)
class Terms:
    """What binds the output of a request. ``room``: tokens until the cloud's context is full. ``logprobs``:
    alternatives that are reported with a token; -1: nothing is.
    """

    stop_ids: frozenset[int]
    max_tokens: int
    vocabulary: int
    room: int
    mode: _core.Mode = _core.Mode.coupled
    logprobs: int = -1


def check_sparse(answered: Answered, verdict: _core.Verdict, accepted: int, terms: Terms) -> None:
    """Raises PeerError unless a verdict leaves the next token to this side exactly where it may: after it
    rejected a drafted token, or with the samples that were asked for.
    """
    asked = answered.sent is not None and answered.sent.more_tail
    if verdict.sparse is None:
        if asked and verdict.finish == _core.Finish.none:
            raise PeerError("verdict brings no tail samples, which were asked for")
        return
    rejects = accepted < len(answered.tree.nodes)
    if terms.mode != _core.Mode.residual or not (rejects or asked):
        raise PeerError("verdict has a sparse row where no drafted token can have been rejected")
    for token, _ in (*verdict.sparse.head, *verdict.sparse.tail):
        if token >= terms.vocabulary:
            raise PeerError(f"sparse row names token {token}: the vocabulary has {terms.vocabulary}")


def check_hint(tokens: Sequence[int], terms: Terms) -> None:
    """Raises PeerError for a hint of tokens that there are not."""
    for token in tokens:
        if token >= terms.vocabulary:
            raise PeerError(f"verdict hints at token {token}: the vocabulary has {terms.vocabulary}")


def check_logprobs(reports: Sequence[_core.TokenLogprob], committed: int, terms: Terms) -> None:
    """Raises PeerError unless there is one report for each of ``committed`` tokens, as asked."""
    expected = committed if terms.logprobs >= 0 else 0
    if len(reports) != expected:
        raise PeerError(f"verdict reports {len(reports)} log-probabilities: {expected} would be right")
    for report in reports:
        alternatives = [token for token, _ in report.top]
        if len(alternatives) != min(terms.logprobs, terms.vocabulary):
            raise PeerError(
                f"verdict reports {len(alternatives)} alternatives: {terms.logprobs} were asked for"
            )
        if any(token >= terms.vocabulary for token in alternatives):
            raise PeerError(
                f"verdict reports on token {max(alternatives)}: the vocabulary has {terms.vocabulary}"
            )


def check_tokens(
    tokens: Sequence[int], finish: _core.Finish, terms: Terms, generated: int, *, rejected: bool = False
) -> None:
    """Raises PeerError when a verdict may not commit ``tokens`` after ``generated`` output tokens, or not
    end so. ``rejected``: it leaves the next token to this side.
    """
    none, stop, length = _core.Finish.none, _core.Finish.stop, _core.Finish.length
    if not tokens and finish in (none, stop, length) and not rejected:
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
