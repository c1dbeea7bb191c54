"""Whether a draft goes with the state of its request."""

from __future__ import annotations

from acespec_edge import _core
from acespec_edge.errors import UsageError


def check_mode(draft: _core.Draft, mode: _core.Mode) -> None:
    """Raises UsageError for a draft that is not of this mode: residual mode takes chains, every token with
    its weight, for a tree's other branches are drawn from no distribution that it names.
    """
    weights, tokens = len(draft.q), len(draft.tokens)
    if mode == _core.Mode.residual:
        if draft.parent_offsets:
            raise UsageError("Draft.parent_offsets: residual mode verifies chains, not trees")
        if weights != tokens:
            raise UsageError(
                f"Draft.q has {weights} entries for {tokens} tokens: residual mode needs one each"
            )
        if draft.wants_hint:
            raise UsageError("Draft.wants_hint: residual mode verifies what the edge has drawn, not guesses")
    elif weights or draft.resampled >= 0 or draft.more_tail:
        raise UsageError("Draft.q, resampled and more_tail: the request is not in residual mode")


def fits(draft: _core.Draft, committed: int, *, rejected: bool, at_work: bool, held: int) -> bool:
    """Whether a draft can be taken in; if not it is too late, and dropped. Always True in coupled mode.

    ``committed``: length. ``rejected``: the edge has to draw the next token before anything can follow.
    ``at_work``: the draft before has no verdict yet. ``held``: nodes that wait or are being verified. Raises
    UsageError for a draft on the present length that answers a rejection or not against what is the case, and
    for a second one before the verdict of the first.
    """
    answers = draft.resampled >= 0 or draft.more_tail
    if rejected != answers or (rejected and draft.base != committed):
        if draft.base < committed:
            return False
        what = "has to" if rejected else "must not"
        raise UsageError(f"Draft.resampled: the edge {what} draw the token at position {committed}")
    if (answers and at_work) or (draft.q and held > 0):
        raise UsageError("Draft: residual mode takes one draft at a time, and the last has no verdict yet")
    return True
