"""The store by itself: who gets what, what it may hold, and that no handle is lost or shared."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from acespec_edge.prefix import common_prefix, digest_of, takes_over, text_of
from cloud_stub.budget import KvBudget
from cloud_stub.prefix_store import Holding, Owner, PrefixStore
from cloud_stub.verifiers.scripted import ScriptedHandle
from tests.cloud.rig import ManualScheduler, hashed_logits

MINE, THEIRS = Owner("a", bytes(16)), Owner("b", bytes(16))
LOGITS = hashed_logits(16)


class Bench:
    """A store over a scheduler driven by hand, and a clock."""

    def __init__(self, capacity: int = 100, seconds: float = 300.0) -> None:
        self.now = 0.0
        self.budget = KvBudget(capacity)
        self.scheduler = ManualScheduler()
        self.store = PrefixStore(self.budget, seconds, self.scheduler.submit, lambda: self.now)

    def leave(self, owner: Owner, text: list[int], *, read: int | None = None) -> ScriptedHandle:
        """A request that ends with ``text`` committed, of which it has read ``read`` tokens."""
        holding = self.store.admit(owner, text, len(text))
        assert holding is not None
        self.scheduler.run()
        if holding.handle is None:
            holding.handle = ScriptedHandle(LOGITS, 16)
        handle = holding.handle
        assert isinstance(handle, ScriptedHandle)
        rest = text[handle.length : len(text) - 1 if read is None else read]
        if rest:
            handle.prefill(rest)
        self.store.keep(owner, holding, text, len(text))
        return handle

    def reused(self, owner: Owner, prompt: list[int], tokens: int = 20) -> list[int]:
        """What a new request finds read."""
        holding = self.store.admit(owner, prompt, tokens)
        assert holding is not None
        self.scheduler.run()
        handle = holding.handle
        return [] if handle is None else handle._committed  # type: ignore[attr-defined]


def test_the_longest_common_prefix_is_found_and_no_token_more() -> None:
    bench = Bench()
    bench.leave(MINE, [1, 2, 3, 4, 5])
    assert bench.reused(MINE, [1, 2, 3, 9, 9]) == [1, 2, 3]


def test_the_last_token_of_a_prompt_is_always_read() -> None:
    bench = Bench()
    bench.leave(MINE, [1, 2, 3, 4, 5])
    assert bench.reused(MINE, [1, 2, 3]) == [1, 2]


def test_the_newest_of_equals_and_the_longest_of_all() -> None:
    bench = Bench()
    bench.leave(MINE, [1, 2, 3, 4, 5, 6])
    bench.leave(MINE, [7, 7, 7, 7])
    bench.leave(MINE, [1, 9, 9, 9])
    assert bench.reused(MINE, [1, 2, 3, 4, 8]) == [1, 2, 3, 4]


def test_nobody_gets_what_another_left() -> None:
    bench = Bench()
    bench.leave(MINE, [1, 2, 3, 4])
    for stranger in (THEIRS, Owner("a", bytes(15) + b"\1"), Owner("", bytes(16))):
        assert bench.reused(stranger, [1, 2, 3, 4, 5], 5) == []
        assert bench.store.beginning(stranger, 2, digest_of(text_of([1, 2]))) is None
        assert not bench.store.holds(stranger)
    assert bench.store.holds(MINE)


def test_a_kept_handle_goes_to_one_request() -> None:
    bench = Bench()
    handle = bench.leave(MINE, [1, 2, 3, 4])
    first = bench.store.admit(MINE, [1, 2, 3, 4, 5], 10)
    second = bench.store.admit(MINE, [1, 2, 3, 4, 5], 10)
    bench.scheduler.run()
    assert first is not None and first.handle is handle
    assert second is not None and second.handle is None


def test_a_text_with_more_to_lose_than_to_use_stays_beside_the_new_one() -> None:
    bench = Bench()
    handle = bench.leave(MINE, list(range(10)))
    assert bench.reused(MINE, [0, 1, 2, 15, 15]) == [0, 1, 2]
    assert handle._committed == list(range(9)) and bench.store.tokens == 10
    assert bench.reused(MINE, [*range(10), 1]) == list(range(9)), "it goes on where it was"


def test_kept_kv_makes_room_the_least_recently_used_first() -> None:
    bench = Bench(capacity=40)
    handles = [bench.leave(MINE, [number] * 10) for number in range(4)]
    assert bench.store.tokens == 40
    bench.store.admit(MINE, [0, 0, 15, 15, 15], 15)  # uses the first, which stays
    bench.scheduler.run()
    assert [handle._closed for handle in handles] == [False, True, True, False]
    assert (bench.budget.reserved, bench.store.tokens) == (15, 20)


def test_a_text_is_read_from_before_it_makes_room() -> None:
    bench = Bench(capacity=20)
    handle = bench.leave(MINE, list(range(10)))
    assert bench.reused(MINE, [0, 1, 15], 20) == [0, 1]
    assert handle._closed and bench.store.tokens == 0


def test_running_requests_are_never_evicted() -> None:
    bench = Bench(capacity=20)
    bench.leave(MINE, [1, 2, 3])
    assert bench.store.admit(MINE, [4], 15) is not None
    assert bench.store.admit(MINE, [4], 6) is None
    assert (bench.budget.reserved, bench.store.tokens) == (15, 3)


def test_time_ends_it() -> None:
    bench = Bench(seconds=60.0)
    handle = bench.leave(MINE, [1, 2, 3])
    bench.now = 59.0
    bench.store.expire()
    assert bench.store.holds(MINE)
    bench.now = 60.0
    assert not bench.store.holds(MINE)
    bench.scheduler.run()
    assert handle._closed and bench.store.tokens == 0


def test_nothing_is_kept_for_no_time() -> None:
    bench = Bench(seconds=0.0)
    handle = bench.leave(MINE, [1, 2, 3])
    bench.scheduler.run()
    assert handle._closed and bench.store.tokens == bench.budget.reserved == 0
    assert bench.reused(MINE, [1, 2, 3, 4]) == []


def test_an_owner_has_eight_texts_at_most() -> None:
    bench = Bench(capacity=1000)
    handles = [bench.leave(MINE, [number] * 3) for number in range(9)]
    theirs = bench.leave(THEIRS, [1, 2, 3])
    bench.scheduler.run()
    assert [handle._closed for handle in handles] == [True] + 8 * [False] and not theirs._closed


def test_the_beginning_of_any_text_can_be_named() -> None:
    bench = Bench()
    bench.leave(MINE, [1, 2, 3, 4])
    bench.leave(MINE, [5, 6])
    assert bench.store.beginning(MINE, 3, digest_of(text_of([1, 2, 3]))) == [1, 2, 3]
    assert bench.store.beginning(MINE, 2, digest_of(text_of([5, 6]))) == [5, 6]
    assert bench.store.beginning(MINE, 2, digest_of(text_of([1, 2, 3]))) is None
    assert bench.store.beginning(MINE, 5, digest_of(text_of([1, 2, 3, 4]))) is None


def test_a_request_that_ended_before_it_read_anything_leaves_its_text() -> None:
    bench = Bench()
    holding = bench.store.admit(MINE, [1, 2, 3], 3)
    assert holding is not None
    bench.store.keep(MINE, holding, [1, 2, 3], 3)
    assert bench.store.beginning(MINE, 3, digest_of(text_of([1, 2, 3]))) == [1, 2, 3]
    assert bench.reused(MINE, [1, 2, 3, 4]) == []


def test_one_that_ends_before_its_work_began_keeps_only_what_is_its_own() -> None:
    bench = Bench()
    bench.leave(MINE, [1, 2, 3, 4, 5, 6])
    holding = bench.store.admit(MINE, [1, 2, 3, 4, 9, 9, 9], 10)
    assert holding is not None
    bench.store.keep(MINE, holding, [1, 2, 3, 4, 9, 9, 9], 10)  # cancelled: nothing has run
    assert bench.reused(MINE, [1, 2, 3, 4, 9, 9, 9, 9]) == [1, 2, 3, 4]


class Requests(RuleBasedStateMachine):
    """Requests of two owners that come, read, and go at random; work runs now or later."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(capacity=60, seconds=30.0)
        self.running: list[tuple[Owner, Holding, list[int], int]] = []
        self.handles: list[ScriptedHandle] = []

    @rule(
        owner=st.sampled_from([MINE, THEIRS]),
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=12),
        more=st.integers(1, 20),
    )
    def admit(self, owner: Owner, prompt: list[int], more: int) -> None:
        before, tokens = self.bench.budget.reserved, len(prompt) + more
        holding = self.bench.store.admit(owner, prompt, tokens)
        assert (holding is None) == (before + tokens > 60)
        if holding is not None:
            self.running.append((owner, holding, prompt, tokens))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), output=st.lists(st.integers(0, 1), max_size=20), kept=st.booleans())
    def end(self, data: st.DataObject, output: list[int], kept: bool) -> None:
        owner, holding, prompt, tokens = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        text = (prompt + output)[:tokens]
        if data.draw(st.booleans()):
            self.bench.scheduler.run()
            self.read(holding, prompt, text)
        if kept:
            self.bench.store.keep(owner, holding, text, tokens)
        else:
            self.bench.store.free(holding, tokens)

    def read(self, holding: Holding, prompt: list[int], text: list[int]) -> None:
        if holding.handle is None:
            handle = holding.handle = ScriptedHandle(LOGITS, 16)
        else:
            assert isinstance(holding.handle, ScriptedHandle)
            handle = holding.handle
            assert handle._committed == prompt[: handle.length] and handle.length < len(prompt)
        if all(handle is not known for known in self.handles):
            self.handles.append(handle)
        rest = text[handle.length : -1]
        if rest:
            handle.prefill(rest)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.bench.now += seconds
        self.bench.store.expire()

    @rule()
    def work(self) -> None:
        self.bench.scheduler.run()

    @invariant()
    def room(self) -> None:
        store, budget = self.bench.store, self.bench.budget
        assert budget.reserved + store.tokens <= budget.capacity
        assert store.tokens == sum(len(kept.text) for kept in store._kept)
        assert budget.reserved == sum(tokens for *_, tokens in self.running)

    def teardown(self) -> None:
        self.bench.scheduler.run()
        used: list[Any] = [holding for _, holding, _, _ in self.running]
        used += [kept.holding for kept in self.bench.store._kept]
        assert len({id(holding) for holding in used}) == len(used), "a handle is shared"
        open_handles = [handle for handle in self.handles if not handle._closed]
        held = [holding.handle for holding in used]
        assert all(any(handle is one for one in held) for handle in open_handles), "a handle is lost"
        for kept in self.bench.store._kept:
            handle = kept.holding.handle
            if isinstance(handle, ScriptedHandle):
                assert common_prefix(text_of(handle._committed), kept.text) == handle.length


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(("common", "length"), [(5, 10), (4, 10)])
def test_both_sides_agree_on_what_is_taken_over(common: int, length: int) -> None:
    bench = Bench()
    bench.leave(MINE, list(range(length)))
    bench.reused(MINE, [*range(common), 15, 15])
    assert (bench.store.tokens == 0) == takes_over(common, length)
