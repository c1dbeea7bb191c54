"""The tree of drafted tokens that both sides hold of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from acespec_edge.protocol import FARTHEST_PARENT, ROOT

_ROOT_NUMBER: Final = 0
"""What the wire calls the last committed token."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes below the last committed token, parents before children.

    ``nodes``: their numbers on the wire, ascending. ``tokens``, ``parents``: of the same nodes; parents are
    indices into these lists, ``ROOT`` for children of the last committed token.
    """

    nodes: list[int]
    tokens: list[int]
    parents: list[int]


@dataclass(slots=True)
class _Node:
    token: int
    parent: int
    round: int


class Mirror:
    """What is left of all drafts of a request, given what has been committed.

    Every node stands for a text: the one its parent stands for and its own token; the root of a draft for
    the committed text up to the draft's base. A node is live while its text goes on where the committed text
    ends. So it is all one whether a draft is inserted before tokens are committed or after, and two mirrors
    that were told the same drafts in one order and the same tokens in one order are equal, however the
    drafts and the tokens alternated. Of nodes with one text the first counts, the others are other names
    for it.

    Rounds are counted without wrapping. Not thread-safe. Memory is O(live nodes + committed tokens); a name
    that no later draft can refer to is forgotten.
    """

    def __init__(self, length: int) -> None:
        """``length``: committed tokens before the first that this mirror is told."""
        self._start = length
        self._output: list[int] = []
        self._next = 1
        self._nodes: dict[int, _Node] = {}
        self._children: dict[tuple[int, int], int] = {}
        self._same: dict[int, int] = {}
        """Other names of live nodes."""
        self._passed: dict[int, int] = {}
        """Committed length up to the node and with it, of nodes whose text is committed."""

    def __len__(self) -> int:
        """Live nodes."""
        return len(self._nodes)

    def __contains__(self, number: int) -> bool:
        """Whether a node can hang below this one: it is live, or its text is committed."""
        return number in self._nodes or number in self._same or number in self._passed

    @property
    def length(self) -> int:
        """Committed length."""
        return self._start + len(self._output)

    @property
    def next_node(self) -> int:
        """The lowest number that is free."""
        return self._next

    def insert(
        self, round: int, base: int, first_node: int, tokens: Sequence[int], parents: Sequence[int]
    ) -> bool:
        """Adds a draft's nodes ``first_node``, ``first_node`` + 1, ...; returns whether any of them is live.

        ``parents``: numbers on the wire; 0 is the token before position ``base``, which lies from the first
        length to the present one. Numbers, and rounds, must grow from draft to draft. O(tokens).
        """
        live = False
        for number, (token, parent) in enumerate(zip(tokens, parents, strict=True), first_node):
            place = self._passed.get(parent) if parent != _ROOT_NUMBER else base
            above = _ROOT_NUMBER
            if place is None:
                above = parent if parent in self._nodes else self._same.get(parent, _ROOT_NUMBER)
                if above == _ROOT_NUMBER:
                    continue
            elif place < self.length:
                if self._output[place - self._start] == token:
                    self._passed[number] = place + 1
                continue
            live = True
            first = self._children.setdefault((above, token), number)
            if first == number:
                self._nodes[number] = _Node(token, above, round)
            else:
                self._same[number] = first
        if tokens:
            self._next = first_node + len(tokens)
            self._forget()
        return live

    def commit(self, tokens: Sequence[int]) -> None:
        """The committed text grows by ``tokens``. O(live nodes + tokens)."""
        if not tokens:
            return
        root: int | None = _ROOT_NUMBER
        passed: dict[int, int] = {}
        for token in tokens:
            self._output.append(token)
            root = self._children.get((root, token)) if root is not None else None
            if root is not None:
                passed[root] = self.length
        kept: dict[int, _Node] = {}
        for number, node in self._nodes.items():
            if node.parent == root:
                node.parent = _ROOT_NUMBER
                kept[number] = node
            elif node.parent in kept:
                kept[number] = node
        self._nodes = kept
        self._children = {(node.parent, node.token): number for number, node in kept.items()}
        others = {number: first for number, first in self._same.items() if first in passed}
        self._same = {number: first for number, first in self._same.items() if first in kept}
        self._passed |= passed | {number: passed[first] for number, first in others.items()}
        self._forget()

    def clear(self) -> None:
        """Drops every live node."""
        self._nodes, self._children, self._same = {}, {}, {}

    def tree(self, *, round: int | None = None, deepest: int | None = None) -> Tree:
        """The live nodes of drafts up to ``round`` that lie at most ``deepest`` below the root (its children
        lie 1 below it). O(live nodes).
        """
        tree = Tree([], [], [])
        places: dict[int, tuple[int, int]] = {_ROOT_NUMBER: (ROOT, 0)}
        for number, node in self._nodes.items():
            if node.parent not in places or (round is not None and node.round > round):
                continue
            parent, depth = places[node.parent]
            if deepest is not None and depth >= deepest:
                continue
            places[number] = (len(tree.nodes), depth + 1)
            tree.nodes.append(number)
            tree.tokens.append(node.token)
            tree.parents.append(parent)
        return tree

    def rounds(self) -> set[int]:
        """Rounds of the drafts that live nodes came with."""
        return {node.round for node in self._nodes.values()}

    def _forget(self) -> None:
        oldest = self._next - FARTHEST_PARENT
        for names in (self._same, self._passed):
            for number in [number for number in names if number < oldest]:
                del names[number]
