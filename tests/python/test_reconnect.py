"""When another connection is tried for, and what becomes of attempts that are not needed any more."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec_edge import _core
from acespec_edge.channel import Channel
from acespec_edge.errors import LinkError, UsageError
from acespec_edge.reconnect import Backoff, Reconnection
from acespec_edge.session import EdgeSession
from tests.clock import LIMIT, wait_until
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import mixing

pytestmark = pytest.mark.usefixtures("threads_end")


class Largest(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return b


def test_waits_double_up_to_half_a_minute_and_begin_anew_after_an_answer() -> None:
    backoff = Backoff(Largest())
    assert [backoff.next() for _ in range(9)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    backoff.reset()
    assert backoff.next() == 0.5
    assert [backoff.next() for _ in range(100_000)][-1] == 30.0


def test_what_a_busy_cloud_asks_for_is_kept_and_spread() -> None:
    assert 7.0 <= Backoff(random.Random(1)).next(7.0) <= 7.5


@given(seed=st.integers(), attempts=st.integers(1, 20))
def test_waits_are_uniform_shares_of_their_ceiling(seed: int, attempts: int) -> None:
    one, twin, largest = Backoff(random.Random(seed)), random.Random(seed), Backoff(Largest())
    for _ in range(attempts):
        ceiling = largest.next()
        assert one.next() == twin.uniform(0.0, ceiling) <= 30.0


def test_a_thousand_edges_do_not_come_back_at_once() -> None:
    """After a restart of their cloud: no tenth of the first half second sees a fifth of them."""
    source = random.Random(3)
    times = [Backoff(source).next() for _ in range(1000)]
    for tenth in range(10):
        assert 50 < sum(tenth / 20 <= time < (tenth + 1) / 20 for time in times) < 200


def channel(cloud: FakeCloud) -> Channel:
    return Channel(cloud, EdgeSession(tokenizer=bytes(32), vocabulary=64, drafter="fake"), 5.0)


def cloud() -> FakeCloud:
    return FakeCloud(mixing(1))


class Attempts:
    """Fails so often, then makes a channel; counts."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.cloud = cloud()
        self.count = 0
        self._failures = failures
        self._error = error or LinkError("nobody there")
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, stopped: threading.Event) -> Channel | None:
        self.count += 1
        self.begun.set()
        self.go_on.wait(LIMIT)
        if self.count <= self._failures:
            raise self._error
        return channel(self.cloud)


class Hasty(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return 0.0


def test_it_tries_until_a_connection_stands() -> None:
    attempts = Attempts(3)
    reconnection = Reconnection(attempts, Backoff(Hasty()), 0.0)
    made = reconnection.wait(LIMIT)
    assert made is not None
    assert attempts.count == 4
    assert str(reconnection.failure) == "nobody there"
    reconnection.close()
    assert not attempts.cloud.closed, "it was handed over"


def test_what_no_attempt_can_change_is_raised() -> None:
    attempts = Attempts(9, UsageError("tokenizers differ"))
    reconnection = Reconnection(attempts, Backoff(Hasty()), 0.0)
    with pytest.raises(UsageError, match="tokenizers differ"):
        reconnection.wait(LIMIT)
    assert attempts.count == 1
    reconnection.close()


@pytest.mark.parametrize("when", ["before", "meanwhile", "after"])
def test_a_connection_that_nobody_takes_is_closed(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acespec_edge.reconnect._CLOSE_TIMEOUT", 0.01)
    attempts = Attempts(0)
    if when == "meanwhile":
        attempts.go_on.clear()
    reconnection = Reconnection(attempts, Backoff(), LIMIT if when == "before" else 0.0)
    if when == "meanwhile":
        assert attempts.begun.wait(LIMIT)
    elif when == "after":
        wait_until(lambda: reconnection.done)
    reconnection.close()
    attempts.go_on.set()
    if when == "before":
        assert attempts.count == 0
    else:
        wait_until(lambda: attempts.cloud.closed)
    assert reconnection.wait(0.0) is None


def test_closing_says_good_bye() -> None:
    attempts = Attempts(0)
    reconnection = Reconnection(attempts, Backoff(), 0.0)
    wait_until(lambda: reconnection.done)
    reconnection.close()
    assert attempts.cloud.closed
    assert not any(isinstance(message, _core.Open) for message in attempts.cloud.received)
