"""Stop strings: the cut depends on the text alone, and nothing of a stop ever shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec_edge.errors import UsageError
from acespec_edge.stops import MAX_STOPS, StopStrings


def plain_cut(text: str, stops: list[str]) -> str:
    """The rule read off its definition: character by character, the first stop to complete wins, the longest
    first."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


@given(
    pieces=st.lists(st.text(alphabet="ab.", max_size=4), max_size=12),
    stops=st.lists(st.text(alphabet="ab.", min_size=1, max_size=4), max_size=4),
)
def test_the_cut_does_not_depend_on_the_pieces(pieces: list[str], stops: list[str]) -> None:
    scanner = StopStrings(stops)
    shown = ""
    whole = plain_cut("".join(pieces), stops)
    for piece in pieces:
        shown += scanner.push(piece)
        assert whole.startswith(shown), "text was shown that is not part of the result"
    shown += scanner.finish()
    assert shown == whole
    assert scanner.stopped == (whole != "".join(pieces))


def test_text_that_can_become_a_stop_waits_for_it() -> None:
    scanner = StopStrings(["END."])
    assert scanner.push("the EN") == "the "
    assert scanner.push("D") == ""
    assert scanner.push("S") == "ENDS"
    assert scanner.push(" EN") == " "
    assert scanner.finish() == "EN"


def test_nothing_shows_after_a_stop() -> None:
    scanner = StopStrings(["\n\n"])
    assert scanner.push("a\n\nb") == "a"
    assert scanner.stopped
    assert scanner.push("c") == ""
    assert scanner.finish() == ""


def test_without_stops_all_text_passes_at_once() -> None:
    scanner = StopStrings([])
    assert scanner.push("abc") == "abc"
    assert scanner.finish() == ""


@pytest.mark.parametrize("stops", [[""], ["a", ""]])
def test_an_empty_stop_is_refused(stops: list[str]) -> None:
    with pytest.raises(UsageError, match=r"stop\[\d\] is ''"):
        StopStrings(stops)


def test_too_many_stops_are_refused() -> None:
    with pytest.raises(UsageError, match=f"at most {MAX_STOPS}"):
        StopStrings(["x"] * (MAX_STOPS + 1))
