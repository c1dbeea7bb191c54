"""Numbers and small trees as both roles of a session read them.

Nodes of a tree are named by their index, ``ROOT`` (-1) is the committed token the tree hangs on; on the wire
nodes have numbers from 1 and the root is 0. Parents come before their children.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

ROOT: Final = -1
"""Parent index of a tree's first level: the last committed token."""

FARTHEST_PARENT: Final = 255
"""How far before a node its parent's number may lie: an offset is one byte."""

_ROUND_MODULUS: Final = 1 << 16


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


def chain_parents(first_node: int, count: int) -> list[int]:
    """Parents, by number, of a chain of ``count`` nodes below the root."""
    return [0, *range(first_node, first_node + count - 1)] if count else []


def parents_from_offsets(first_node: int, count: int, offsets: Sequence[int]) -> list[int]:
    """Parents, by number, of a draft of ``count`` nodes from the wire's ``parent_offsets`` (empty: a chain
    below the root). They are of this draft or of one before it; 0 is the root.

    Raises ValueError when an offset points before node 1 or their number is not ``count``.
    """
    if not offsets:
        return chain_parents(first_node, count)
    if len(offsets) != count:
        raise ValueError(f"parent_offsets has {len(offsets)} entries for {count} tokens")
    for index, offset in enumerate(offsets):
        if offset >= first_node + index:
            raise ValueError(f"parent_offsets[{index}] is {offset}: it points before the first node")
    return [first_node + index - offset if offset else 0 for index, offset in enumerate(offsets)]


def offsets_from_parents(first_node: int, parents: Sequence[int]) -> list[int]:
    """The inverse of ``parents_from_offsets``; empty for a chain below the root."""
    if list(parents) == chain_parents(first_node, len(parents)):
        return []
    return [number - parent if parent else 0 for number, parent in enumerate(parents, first_node)]


def wire_round(count: int) -> int:
    """What the wire calls draft ``count`` of a request: rounds are 16 bit and wrap."""
    return count % _ROUND_MODULUS


def round_after(last: int, number: int) -> int | None:
    """The draft, counted without wrapping, that round ``number`` names when ``last`` is the newest so far;
    None when it is not newer (as in RFC 1982).
    """
    ahead = (number - last) % _ROUND_MODULUS
    return last + ahead if 0 < ahead < _ROUND_MODULUS // 2 else None
