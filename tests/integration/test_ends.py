"""What is past the end of a request is nowhere: not in the next turn, not in a request that goes on."""

from __future__ import annotations

import pytest

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.errors import UsageError
from tests.integration.edge_cloud_kit import COUPLED, PROMPT, local_runtime, native_drafter, plainly
from tests.python.fake_bundle import with_eos

COUNT = 30


@pytest.mark.parametrize("place", range(10))
@pytest.mark.parametrize("options", [{}, COUPLED], ids=["greedy", "coupled"])
def test_e5_a_request_that_ended_mid_block_goes_on_as_the_unbroken_one(
    bundle: Bundle, place: int, options: dict[str, float]
) -> None:
    unbroken = plainly(PROMPT, COUNT, _core.SamplingRules(**options))
    drafter = native_drafter(disagreement=0.05)
    parts: list[int] = []
    with local_runtime(with_eos(bundle, unbroken[place]), drafter, draft_length=8, verify_ms=1.0) as edge:
        while len(parts) < COUNT:
            result = edge.generate([*PROMPT, *parts], max_tokens=COUNT - len(parts), **options)
            parts += result.token_ids
            assert result.finish_reason == ("stop" if parts[-1] == unbroken[place] else "length")
    assert parts == unbroken


@pytest.mark.parametrize("place", range(10))
def test_e6_a_second_turn_holds_only_what_was_returned(bundle: Bundle, place: int) -> None:
    """The drafter is the target's equal, so every block runs past the end and would be accepted there."""
    whole = plainly(PROMPT, COUNT)
    drafter = native_drafter(disagreement=0.0)
    with local_runtime(with_eos(bundle, whole[place]), drafter, draft_length=8, verify_ms=1.0) as edge:
        first = edge.generate(PROMPT, max_tokens=COUNT).token_ids
        assert first == whole[: whole.index(whole[place]) + 1]
        turn = [*PROMPT, *first, 8, 8]
        second = edge.generate(turn, max_tokens=COUNT)
        assert drafter.check() == []
    assert second.token_ids == plainly(turn, COUNT, stop=[whole[place]])
    assert len(PROMPT) <= second.stats.reused_tokens <= len(turn)


def test_a1_the_end_comes_once_and_last(bundle: Bundle) -> None:
    """A reader sees text only until the end, and then reason and usage, which fit what was read."""
    with local_runtime(bundle, draft_length=5) as edge:
        stream = edge.stream(PROMPT, max_tokens=20)
        read: list[int] = []
        for piece in stream:
            assert piece.token_ids
            read += piece.token_ids
            if len(read) < 20:
                with pytest.raises(UsageError, match="result"):
                    _ = stream.result
        assert list(stream) == []
        result = stream.result
    assert read == result.token_ids == plainly(PROMPT, 20)
    assert (result.finish_reason, result.usage.completion_tokens) == ("length", 20)
