"""The draft-matching rule both roles share."""

from __future__ import annotations

import random

import pytest

from acespec_edge.protocol import (
    ROOT,
    Match,
    depths,
    is_newer,
    match,
    next_round,
    parents_from_offsets,
    path_to,
)

# root -> 5 -> 6 -> 7, with 8 beside 6 and 9 below 8
TOKENS = [5, 6, 7, 8, 9]
PARENTS = [ROOT, 0, 1, 0, 3]


@pytest.mark.parametrize(
    ("committed", "expected"),
    [
        ([], Match([0, 1, 2, 3, 4], TOKENS, PARENTS)),
        ([5], Match([1, 2, 3, 4], [6, 7, 8, 9], [ROOT, 0, ROOT, 2])),
        ([5, 6], Match([2], [7], [ROOT])),
        ([5, 8], Match([4], [9], [ROOT])),
        ([5, 6, 7], None),
        ([5, 9], None),
        ([6], None),
        ([5, 8, 9, 1], None),
    ],
)
def test_committed_tokens_walk_down_the_tree(committed: list[int], expected: Match | None) -> None:
    assert match(committed, TOKENS, PARENTS) == expected


def test_a_draft_without_nodes_is_a_plain_step_on_its_own_base_only() -> None:
    assert match([], [], []) == Match([], [], [])
    assert match([3], [], []) is None


def test_match_agrees_with_enumerating_every_path() -> None:
    rng = random.Random(7)
    for _ in range(300):
        count = rng.randrange(8)
        parents = [rng.randrange(-1, node) if node else ROOT for node in range(count)]
        tokens: list[int] = []
        for node in range(count):
            taken = {tokens[k] for k in range(node) if parents[k] == parents[node]}
            tokens.append(rng.choice([t for t in range(12) if t not in taken]))
        paths: list[tuple[int, ...]] = []
        for node, parent in enumerate(parents):
            paths.append((paths[parent] if parent != ROOT else ()) + (tokens[node],))
        committed = rng.choice([(), (1,), *paths, *[(*p, 2) for p in paths]])
        inside = [p for p in paths if p[: len(committed)] == committed and p != committed]
        below = sorted(p[len(committed) :] for p in inside)
        known = not committed or committed in paths
        found = match(committed, tokens, parents)
        if not known or (committed and not below):
            assert found is None
            continue
        assert found is not None
        rebuilt: list[tuple[int, ...]] = []
        for token, parent in zip(found.tokens, found.parents, strict=True):
            rebuilt.append((rebuilt[parent] if parent != ROOT else ()) + (token,))
        assert sorted(rebuilt) == below
        assert found.tokens == [tokens[node] for node in found.nodes]


def test_parents_from_offsets() -> None:
    assert parents_from_offsets(3, []) == [ROOT, 0, 1]
    assert parents_from_offsets(5, [0, 1, 1, 3, 1]) == PARENTS
    assert path_to(4, PARENTS) == [0, 3, 4] and path_to(ROOT, PARENTS) == []
    assert depths(PARENTS) == [1, 2, 3, 2, 3]


def test_bad_offsets_are_named() -> None:
    with pytest.raises(ValueError, match=r"parent_offsets\[1\] is 2"):
        parents_from_offsets(2, [0, 2])
    with pytest.raises(ValueError, match="1 entries for 2 tokens"):
        parents_from_offsets(2, [0])


def test_rounds_wrap() -> None:
    assert is_newer(1, 0) and not is_newer(0, 0) and not is_newer(3, 4)
    assert next_round(65535) == 0
    assert is_newer(0, 65535) and not is_newer(65535, 0)
