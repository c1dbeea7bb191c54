"""What an edge thinks the cloud keeps: used while it may be there, never after."""

from __future__ import annotations

from collections.abc import Sequence

from acespec_edge.known_contexts import KnownContexts
from acespec_edge.prefix import text_of

KEY = bytes(range(16))
LONG = list(range(100))


def known(*prompts: Sequence[int], seconds: int = 300, at: float = 0.0) -> KnownContexts:
    contexts = KnownContexts()
    contexts.welcomed(KEY, seconds)
    for prompt in prompts:
        contexts.begin(text_of(prompt), at)
    return contexts


def held(contexts: KnownContexts, prompt: Sequence[int], at: float = 0.0) -> int:
    return contexts.held(text_of(prompt), at)


def test_the_longest_common_prefix_of_any_text_counts() -> None:
    contexts = known(LONG, [9, *LONG])
    assert held(contexts, [*LONG[:60], 1, 2]) == 60
    assert held(contexts, [9, *LONG, 5]) == 101
    assert held(contexts, [8, *LONG]) == 0


def test_what_saves_nothing_is_sent() -> None:
    contexts = known(LONG)
    assert (held(contexts, LONG[:31]), held(contexts, LONG[:32])) == (0, 32)


def test_committed_tokens_are_part_of_the_newest_text() -> None:
    contexts = known(LONG)
    contexts.grow([7, 8], 1.0)
    assert held(contexts, [*LONG, 7, 8, 3]) == 102


def test_a_text_is_forgotten_a_little_before_the_cloud_does() -> None:
    contexts = known(LONG, seconds=60)
    contexts.grow([1], 10.0)
    assert held(contexts, LONG, at=64.9) == 100
    assert held(contexts, LONG, at=65.1) == 0
    assert held(known(LONG, seconds=0), LONG) == held(known(LONG, seconds=4), LONG) == 0


def test_another_key_means_that_nothing_is_kept() -> None:
    contexts = known(LONG)
    contexts.welcomed(KEY, 300)
    assert held(contexts, LONG) == 100
    contexts.welcomed(bytes(16), 300)
    assert held(contexts, LONG) == 0 and contexts.key == bytes(16)


def test_a_request_takes_over_the_text_that_it_goes_on_with_and_leaves_others() -> None:
    contexts = known(LONG, [9, *LONG])
    contexts.begin(text_of([*LONG[:50], 1, 1]), 0.0)
    assert held(contexts, LONG) == 50, "the cloud has cut it to the new one"
    contexts.begin(text_of([9, 0, 1, 4]), 0.0)
    assert held(contexts, [9, *LONG]) == 101, "too much of it would be lost"


def test_failures_and_surprises() -> None:
    contexts = known(LONG, [9, *LONG])
    contexts.fail()
    assert (held(contexts, LONG), held(contexts, [9, *LONG])) == (100, 0)
    contexts.begin(text_of([9, *LONG]), 0.0)
    contexts.only_newest()
    assert (held(contexts, LONG), held(contexts, [9, *LONG])) == (0, 101)
    empty = KnownContexts()
    empty.fail()
    empty.grow([1], 0.0)
    assert held(empty, LONG) == 0 and empty.key == b""


def test_eight_texts_are_known_at_most() -> None:
    contexts = known(*([number, *LONG] for number in range(9)))
    assert [held(contexts, [number, *LONG]) for number in range(9)] == [0] + 8 * [101]


def test_the_callers_prompt_is_not_touched() -> None:
    contexts = known()
    prompt = text_of(LONG)
    contexts.begin(prompt, 0.0)
    contexts.grow([1], 0.0)
    assert prompt.tolist() == LONG
