"""Hints: what a draft asks for, and what a verdict may say."""

from __future__ import annotations

import pytest

from acespec_edge import _core
from acespec_edge.control import Controller
from acespec_edge.errors import PeerError, UsageError
from acespec_edge.policy import POLICIES
from acespec_edge.session import EdgeSession
from tests.python.control_kit import after_misses
from tests.python.session_kit import running, take


def hinting(hint: list[int], **fields: object) -> bytes:
    return _core.encode(_core.Verdict(request=1, round=1, base=4, tokens=[20], hint=hint, **fields))  # type: ignore[arg-type]


def asked() -> EdgeSession:
    session = running()
    session.draft([5, 6], at=0.0, wants_hint=True)
    return session


def test_a_draft_says_that_it_wants_one_and_the_verdict_tells() -> None:
    session = running()
    assert _core.decode(session.draft([5], at=0.0)) == _core.Draft(
        request=1, round=1, base=4, first_node=1, tokens=[5]
    )
    assert _core.decode(session.draft([6], at=0.0, wants_hint=True)).wants_hint
    event = take(asked(), hinting([7, 8, 63]))
    assert (event.tokens, event.hint) == ([20], [7, 8, 63])


def test_a_hint_commits_nothing() -> None:
    session = asked()
    take(session, hinting([7, 8]))
    assert (session.committed, session.held, session.owed) == (5, 0, False)
    session.draft([7, 8], at=1.0)
    assert session.held == 2


def test_a_hint_of_a_token_that_there_is_not_is_a_breach() -> None:
    with pytest.raises(PeerError, match="verdict hints at token 64: the vocabulary has 64"):
        asked().receive(hinting([7, 64]), 0.0)


@pytest.mark.parametrize(
    "fields",
    [{"finish": _core.Finish.stop}, {"tokens": [], "sparse": _core.SparseRow(head=[(1, 0.5)])}],
)
def test_a_hint_goes_with_no_end_and_no_sparse_row(fields: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"Verdict\.hint"):
        _core.encode(_core.Verdict(**{"tokens": [1], "hint": [2]} | fields))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"Draft\.more_tail"):
        _core.encode(_core.Draft(more_tail=True, wants_hint=True))


def test_hints_are_used_by_their_record() -> None:
    """Of seven tokens each; the drafter takes long and is often wrong."""
    control = after_misses("auto")
    assert control.hint_length(7) > 0 and control.wants_hint() is not control.goes_on()
    for _ in range(60):
        control.hinted([1] * 7, [2])
    assert control.hint_length(7) == 0 and not control.wants_hint()
    for _ in range(200):
        control.hinted([1] * 7, [1] * 7)
    assert control.hint_length(7) == 7


@pytest.mark.parametrize(("policy", "wants"), [("hinted", True), ("tree", False), ("chain", False)])
def test_a_policy_may_settle_hints(policy: str, wants: bool) -> None:
    control = Controller(POLICIES[policy], width=8)
    for _ in range(20):
        assert control.wants_hint() is wants
        control.sent(0.0, 3, 60, wants_hint=wants)


def test_what_a_shorter_verdict_leaves_open_is_not_held_against_a_hint() -> None:
    short, whole = after_misses("auto"), after_misses("auto")
    for _ in range(50):
        short.hinted([1, 2, 3], [1])
        whole.hinted([1, 2, 3], [9, 9])
    assert short.hint_length(3) == 3 > whole.hint_length(3)
