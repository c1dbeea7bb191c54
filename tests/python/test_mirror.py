"""The mirrored tree: against the texts that its nodes stand for, and in every order of what it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec_edge.mirror import Mirror, Tree
from acespec_edge.protocol import ROOT

START = 3
Text = tuple[int, ...]


@dataclass(frozen=True)
class Draft:
    """``before``: output tokens committed when it was drafted; the rest as of ``Mirror.insert``."""

    round: int
    before: int
    first_node: int
    tokens: list[int]
    parents: list[int]


class Texts:
    """What a mirror is to hold, worked out from whole texts: O(everything)."""

    def __init__(self) -> None:
        self.committed: Text = ()
        self.texts: dict[int, Text] = {}
        self.rounds: dict[int, int] = {}
        self.next = 1

    def insert(self, draft: Draft, output: Sequence[int]) -> None:
        for number, (token, parent) in enumerate(
            zip(draft.tokens, draft.parents, strict=True), draft.first_node
        ):
            above = tuple(output[: draft.before]) if parent == 0 else self.texts.get(parent)
            if above is not None:
                self.texts[number] = (*above, token)
                self.rounds[number] = draft.round
        if draft.tokens:
            self.next = draft.first_node + len(draft.tokens)

    def tree(self, *, round: int = 1 << 30, deepest: int = 1 << 30) -> Tree:
        """The live nodes; of those with one text the first."""
        length = len(self.committed)
        first: dict[Text, int] = {}
        for number, text in sorted(self.texts.items()):
            if text[:length] == self.committed and len(text) > length:
                first.setdefault(text, number)
        live = sorted(
            number
            for text, number in first.items()
            if self.rounds[number] <= round and len(text) - length <= deepest
        )
        places = {self.texts[number]: place for place, number in enumerate(live)} | {self.committed: ROOT}
        texts = [self.texts[number] for number in live]
        return Tree(live, [text[-1] for text in texts], [places[text[:-1]] for text in texts])

    def knows(self, number: int) -> bool:
        """Whether a node below this one could be live or committed, and can be named."""
        text = self.texts.get(number, ())
        length = min(len(text), len(self.committed))
        fits = bool(text) and text[:length] == self.committed[:length]
        live = number in self.tree().nodes
        return fits and (live or number >= self.next - 255)


@st.composite
def stories(draw: st.DrawFn) -> tuple[list[int], list[Draft]]:
    """An output, and drafts that an edge, or something worse, could have sent while it grew. Few tokens, so
    that texts meet."""
    output = draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
    drafts: list[Draft] = []
    number, before = 1, 0
    for round in range(1, draw(st.integers(1, 6)) + 1):
        before = draw(st.integers(before, min(len(output), before + 2)))
        number += draw(st.sampled_from([0, 0, 0, 1, 250]))
        count = draw(st.integers(0, 5))
        tokens = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
        parents = [
            draw(st.sampled_from([0, max(0, node - 1), draw(st.integers(max(0, node - 255), node - 1))]))
            for node in range(number, number + count)
        ]
        drafts.append(Draft(round, before, number, tokens, parents))
        number += count
    return output, drafts


def told(mirror: Mirror, draft: Draft) -> bool:
    return mirror.insert(draft.round, START + draft.before, draft.first_node, draft.tokens, draft.parents)


@settings(max_examples=400, deadline=None)
@given(story=stories(), data=st.data())
def test_a_mirror_holds_the_texts_that_go_on(
    story: tuple[list[int], list[Draft]], data: st.DataObject
) -> None:
    output, drafts = story
    mirror, texts = Mirror(START), Texts()
    waiting = list(drafts)
    while waiting or len(texts.committed) < len(output):
        done = len(texts.committed)
        may_insert = bool(waiting) and waiting[0].before <= done
        if may_insert and (done == len(output) or data.draw(st.booleans())):
            draft = waiting.pop(0)
            texts.insert(draft, output)
            live = told(mirror, draft)
            mine = set(range(draft.first_node, draft.first_node + len(draft.tokens)))
            wanted = any(
                texts.texts[number][:done] == texts.committed and len(texts.texts[number]) > done
                for number in mine & set(texts.texts)
            )
            assert live == wanted
        else:
            tokens = output[done : done + data.draw(st.integers(1, 3))]
            mirror.commit(tokens)
            texts.committed += tuple(tokens)
        assert mirror.length == START + len(texts.committed) and mirror.next_node == texts.next
        expected = texts.tree()
        assert mirror.tree() == expected and len(mirror) == len(expected.nodes)
        assert mirror.rounds() == {texts.rounds[number] for number in expected.nodes}
        for round, deepest in ((1, 9), (2, 2), (9, 1), (9, 0)):
            wanted_tree = texts.tree(round=round, deepest=deepest)
            assert mirror.tree(round=round, deepest=deepest) == wanted_tree
        for number in range(texts.next + 1):
            assert (number in mirror) == texts.knows(number), number


@settings(max_examples=400, deadline=None)
@given(story=stories(), data=st.data())
def test_the_order_of_drafts_and_commits_is_all_one(
    story: tuple[list[int], list[Draft]], data: st.DataObject
) -> None:
    """One mirror hears of a draft as soon as it can, the other lags as it likes."""
    output, drafts = story
    eager, lagging = Mirror(START), Mirror(START)
    for mirror in (eager, lagging):
        waiting, done = list(drafts), 0
        while waiting or done < len(output):
            first = mirror is eager or data.draw(st.booleans())
            if waiting and waiting[0].before <= done and (first or done == len(output)):
                told(mirror, waiting.pop(0))
            else:
                size = data.draw(st.integers(1, 3))
                mirror.commit(output[done : done + size])
                done = min(len(output), done + size)
    for name in ("_nodes", "_children", "_same", "_passed", "_output", "_next"):
        assert getattr(eager, name) == getattr(lagging, name), name
    assert list(eager._nodes) == list(lagging._nodes)


def test_only_earlier_drafts_decide_what_a_verdict_is_about() -> None:
    """A draft that comes later takes no node of an earlier one, whatever it repeats."""
    mirror = Mirror(START)
    mirror.insert(1, START, 1, [5, 6], [0, 1])
    before = mirror.tree()
    mirror.insert(2, START, 3, [5, 6, 7, 8], [0, 3, 4, 2])
    assert mirror.tree(round=1) == before
    assert mirror.tree() == Tree([1, 2, 5, 6], [5, 6, 7, 8], [ROOT, 0, 1, 1])
    assert 3 in mirror and 4 in mirror, "other names for 1 and 2"


def test_what_was_committed_can_still_be_named() -> None:
    mirror = Mirror(START)
    mirror.insert(1, START, 1, [5, 6, 7], [0, 1, 1])
    mirror.commit([5])
    assert mirror.tree() == Tree([2, 3], [6, 7], [ROOT, ROOT])
    assert mirror.insert(2, START, 4, [8], [1]), "below the last committed token"
    assert mirror.tree().nodes == [2, 3, 4]
    assert not mirror.insert(3, START, 5, [9, 6], [0, 5]), "5 is committed there, not 9"
    mirror.commit([6, 1])
    assert len(mirror) == 0
    assert not mirror.insert(4, START, 7, [6, 2], [1, 7]), "6 is committed, and 1 follows it, not 2"
    assert mirror.insert(5, START, 9, [1, 3], [7, 9])
    assert mirror.tree() == Tree([10], [3], [ROOT])


def test_names_that_no_draft_can_use_are_forgotten() -> None:
    mirror = Mirror(START)
    mirror.insert(1, START, 1, [5, 6, 5], [0, 1, 0])
    mirror.commit([5])
    mirror.insert(2, START + 1, 250, [8] * 6, [0] * 6)
    assert 1 in mirror and 3 in mirror
    mirror.insert(3, START + 1, 256, [8], [0])
    assert 1 not in mirror and 3 in mirror and 2 in mirror
    mirror.insert(4, START + 1, 1000, [9], [0])
    assert mirror.tree().nodes == [2, 250, 1000], "live nodes stay, whatever their number"
    mirror.commit([6])
    assert 2 not in mirror and len(mirror._passed) == len(mirror._same) == 0


def test_clearing_leaves_the_names_of_what_is_committed() -> None:
    mirror = Mirror(START)
    mirror.insert(1, START, 1, [5, 6], [0, 1])
    mirror.commit([5])
    mirror.clear()
    assert len(mirror) == 0 and 1 in mirror and 2 not in mirror
    assert not mirror.insert(2, START + 1, 3, [7], [2])


@pytest.mark.parametrize("count", [1, 3])
def test_nothing_committed_changes_nothing(count: int) -> None:
    mirror = Mirror(START)
    mirror.insert(1, START, 1, [5] * count, list(range(count)))
    before = mirror.tree()
    mirror.commit([])
    assert mirror.tree() == before
