"""What of a draft can be verified, given all that was committed since it was sent."""

from __future__ import annotations

from collections.abc import Sequence

from acespec_edge import _core
from acespec_edge.errors import UsageError
from acespec_edge.protocol import ROOT, depths, match
from cloud_stub.judge import Terms
from cloud_stub.pending import Attempt, PendingDraft


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
    elif weights or draft.resampled >= 0 or draft.more_tail:
        raise UsageError("Draft.q, resampled and more_tail: the request is not in residual mode")


def fitted(draft: PendingDraft, committed: Sequence[int], terms: Terms, *, rejected: bool) -> Attempt | None:
    """What is left of the draft and may still be committed: a node too deep for the end is not verified.

    None: it is dropped. ``rejected``: the edge has to draw the next token before anything can follow. Raises
    UsageError for a draft that says so, or does not, against what is the case.
    """
    answers = draft.resampled is not None or draft.more_tail
    if rejected != answers or (rejected and draft.base != len(committed)):
        if draft.base < len(committed):
            return None
        what = "has to" if rejected else "must not"
        raise UsageError(f"Draft.resampled: the edge {what} draw the token at position {len(committed)}")
    length = len(committed)
    finish = _core.Finish.none
    since: Sequence[int] = committed[draft.base :]
    if draft.resampled is not None:
        length += 1
        finish = terms.finish(draft.resampled, length)
    left = match(since, draft.tokens, draft.parents)
    if left is None:
        return None
    deepest = terms.end - length - 1
    kept = [node for node, depth in enumerate(depths(left.parents)) if depth <= deepest]
    renumbered = {ROOT: ROOT} | {node: index for index, node in enumerate(kept)}
    nodes = [left.nodes[node] for node in kept]
    return Attempt(
        round=draft.round,
        first_node=draft.first_node,
        tokens=[left.tokens[node] for node in kept],
        parents=[renumbered[left.parents[node]] for node in kept],
        nodes=nodes,
        weights=[draft.weights[node] for node in nodes] if draft.weights else [],
        resampled=draft.resampled,
        more_tail=draft.more_tail,
        finish=finish,
    )
