"""Numbers and small trees, as both roles read them."""

from __future__ import annotations

import pytest

from acespec_edge.protocol import (
    ROOT,
    child_of,
    depths,
    offsets_from_parents,
    parents_from_offsets,
    path_to,
    round_after,
    wire_round,
)

# root -> 5 -> 6 -> 7, with 8 beside 6 and 9 below 8
TOKENS = [5, 6, 7, 8, 9]
PARENTS = [ROOT, 0, 1, 0, 3]


def test_small_trees() -> None:
    assert path_to(4, PARENTS) == [0, 3, 4] and path_to(ROOT, PARENTS) == []
    assert depths(PARENTS) == [1, 2, 3, 2, 3]
    assert child_of(0, 8, TOKENS, PARENTS) == 3 and child_of(ROOT, 6, TOKENS, PARENTS) == ROOT


@pytest.mark.parametrize(
    ("first", "count", "offsets", "parents"),
    [
        (1, 3, [], [0, 1, 2]),
        (7, 3, [], [0, 7, 8]),
        (7, 0, [], []),
        (7, 5, [0, 1, 1, 3, 1], [0, 7, 8, 7, 10]),
        (7, 3, [4, 1, 8], [3, 7, 1]),
        (300, 2, [255, 255], [45, 46]),
    ],
)
def test_offsets_name_parents(first: int, count: int, offsets: list[int], parents: list[int]) -> None:
    assert parents_from_offsets(first, count, offsets) == parents
    assert offsets_from_parents(first, parents) == offsets


def test_a_chain_needs_no_offsets() -> None:
    assert parents_from_offsets(4, 3, [0, 1, 1]) == parents_from_offsets(4, 3, [])


def test_bad_offsets_are_named() -> None:
    with pytest.raises(ValueError, match=r"parent_offsets\[1\] is 4"):
        parents_from_offsets(3, 2, [0, 4])
    with pytest.raises(ValueError, match="1 entries for 2 tokens"):
        parents_from_offsets(1, 2, [0])


def test_rounds_wrap() -> None:
    assert round_after(0, 1) == 1 and round_after(0, 0) is None and round_after(4, 3) is None
    assert round_after(65_535, 0) == 65_536 and wire_round(65_536) == 0
    assert round_after(65_536, 65_535) is None
    assert round_after(200_000, wire_round(200_007)) == 200_007
    assert round_after(0, 32_767) == 32_767 and round_after(0, 32_768) is None
