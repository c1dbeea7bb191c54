"""The rules both roles of a session apply to a draft, so that neither has to tell the other.

Nodes of a draft are named here by their index in ``tokens`` (the wire's number minus ``first_node``);
``ROOT`` (-1) is the committed token the draft hangs on. Parents come before their children.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ROOT: Final = -1
"""Parent index of a draft's first level: the last committed token at the draft's base."""

_ROUND_MODULUS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Match:
    """What is left of a draft once the tokens committed since its base have walked down its tree.

    ``nodes``: indices into the draft, ascending, of the nodes still open. ``tokens`` and ``parents``
    describe the same nodes renumbered 0..len-1, with ``ROOT`` for children of the last committed token.
    All three are empty for a plain step (a draft without nodes on the current base).
    """

    nodes: list[int]
    tokens: list[int]
    parents: list[int]


def match(committed_since_base: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> Match | None:
    """Returns what remains of the tree ``tokens``/``parents`` below ``committed_since_base``.

    ``None`` means the draft is dropped without an answer: the committed tokens left its tree, or used up
    all of it. O(nodes + committed). Among siblings of one token the first counts.
    """
    root = ROOT
    start = 0
    for token in committed_since_base:
        root = child_of(root, token, tokens, parents, start)
        if root == ROOT:
            return None
        start = root + 1
    remaining = Match([], [], [])
    renumbered = {root: ROOT}
    for node in range(start, len(tokens)):
        parent = renumbered.get(parents[node])
        if parent is not None:
            renumbered[node] = len(remaining.nodes)
            remaining.nodes.append(node)
            remaining.tokens.append(tokens[node])
            remaining.parents.append(parent)
    if committed_since_base and not remaining.nodes:
        return None
    return remaining


def child_of(parent: int, token: int, tokens: Sequence[int], parents: Sequence[int], start: int = 0) -> int:
    """Index of the first node from ``start`` on with this token and parent; ``ROOT`` when there is none."""
    for node in range(start, len(tokens)):
        if tokens[node] == token and parents[node] == parent:
            return node
    return ROOT


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """Nodes from the first level down to ``node``; empty for ``ROOT``."""
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]


def depths(parents: Sequence[int]) -> list[int]:
    """Distance of every node from the root: 1 for the first level."""
    result: list[int] = []
    for parent in parents:
        result.append(1 if parent == ROOT else result[parent] + 1)
    return result


def parents_from_offsets(count: int, offsets: Sequence[int]) -> list[int]:
    """Parent indices of a draft of ``count`` nodes from the wire's ``parent_offsets`` (empty: a chain).

    Raises ValueError when an offset points before the draft or their number is not ``count``.
    """
    if not offsets:
        return list(range(ROOT, count - 1))
    if len(offsets) != count:
        raise ValueError(f"parent_offsets has {len(offsets)} entries for {count} tokens")
    for node, offset in enumerate(offsets):
        if offset > node:
            raise ValueError(f"parent_offsets[{node}] is {offset}: it points before the draft's first node")
    return [node - offset if offset else ROOT for node, offset in enumerate(offsets)]


def is_newer(round_number: int, last: int) -> bool:
    """Whether ``round_number`` comes after ``last``; rounds are 16 bit and wrap (as in RFC 1982)."""
    return 0 < (round_number - last) % _ROUND_MODULUS < _ROUND_MODULUS // 2


def next_round(round_number: int) -> int:
    """The round after ``round_number``."""
    return (round_number + 1) % _ROUND_MODULUS
