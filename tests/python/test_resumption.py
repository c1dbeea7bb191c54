"""Requests whose connection is lost: they go on where they were, alone where that is wished, and say so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.errors import LinkError, UsageError
from acespec_edge.request import make_request, resumed
from acespec_edge.resumption import LinkEvent
from tests.clock import LIMIT
from tests.python.edge_kit import PROMPT, TARGET, ids_of
from tests.python.fake_bundle import make_bundle, with_eos
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import (
    Choose,
    FakeDrafter,
    decode_plainly,
    mixing,
    scripted,
    sometimes,
)
from tests.python.uplink_kit import Clouds, edge_of

pytestmark = pytest.mark.usefixtures("threads_end", "at_once")

COUNT = 40
OTHER = mixing(5, vocabulary=40)
WHOLE = decode_plainly(TARGET, PROMPT, COUNT)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "bundle")


def lossy(messages: int) -> Iterator[FakeCloud]:
    """Clouds without end, each of which is lost after so many messages down."""
    while True:
        yield FakeCloud(TARGET, vanish_after=messages)


@pytest.mark.parametrize("mode", ["auto", "cloud"])
@pytest.mark.parametrize("messages", range(2, 10))
def test_w1_lost_after_any_message_a_request_goes_on(bundle: Bundle, messages: int, mode: Any) -> None:
    clouds = Clouds(FakeCloud(TARGET, vanish_after=messages), FakeCloud(TARGET))
    events: list[LinkEvent] = []
    with edge_of(bundle, clouds, on_link=events.append) as edge:
        stream = edge.stream(PROMPT, max_tokens=COUNT, mode=mode)
        pieces = list(stream)
    result = stream.result
    assert result.token_ids == WHOLE == [token for piece in pieces for token in piece.token_ids]
    assert result.text == "".join(piece.text for piece in pieces)
    assert result.origins == [("target", COUNT)]
    assert (result.stats.outages, result.stats.reconnects) == (1, 1)
    assert [event.kind for event in events] == ["lost", "back"]
    assert clouds.made[0].closed


@given(lives=st.lists(st.integers(0, 12), max_size=6), drafted=st.integers(0, 6), every=st.integers(1, 7))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_w1_whatever_the_lives_of_links_the_text_is_whole(
    bundle: Bundle, lives: list[int], drafted: int, every: int
) -> None:
    """0 is an attempt that fails."""
    clouds = Clouds(
        FakeCloud(TARGET, vanish_after=2),
        *(FakeCloud(TARGET, vanish_after=messages) if messages else None for messages in lives),
        FakeCloud(TARGET),
    )
    drafter = FakeDrafter(sometimes(TARGET, OTHER, every))
    with edge_of(bundle, clouds, drafter=drafter, draft_length=drafted) as edge:
        result = edge.generate(PROMPT, max_tokens=COUNT)
    assert result.token_ids == WHOLE


@pytest.mark.parametrize("messages", [2, 3, 5])
def test_w1_a_link_that_is_lost_over_and_over_loses_nothing(bundle: Bundle, messages: int) -> None:
    links = lossy(messages)
    with edge_of(bundle, lambda: next(links)) as edge:
        result = edge.generate(PROMPT, max_tokens=COUNT)
        assert result.token_ids == WHOLE
        assert result.stats.reconnects == result.stats.outages > 1
        assert edge.generate(PROMPT, max_tokens=COUNT).token_ids == WHOLE


def test_w2_a_silent_cloud_is_left_for_another(bundle: Bundle) -> None:
    clouds = Clouds(FakeCloud(TARGET, silent_after=3), FakeCloud(TARGET))
    with edge_of(bundle, clouds, timeout=0.2) as edge:
        assert edge.generate(PROMPT, max_tokens=COUNT).token_ids == WHOLE


def test_what_is_opened_again_carries_what_was_committed(bundle: Bundle) -> None:
    first, second = FakeCloud(TARGET, vanish_after=4), FakeCloud(TARGET)
    with edge_of(bundle, Clouds(first, second)) as edge:
        edge.generate(PROMPT, max_tokens=COUNT, min_tokens=7, presence_penalty=0.5, seed=3, continue_from=[1])
    [opened] = [message for message in second.received if isinstance(message, _core.Open)]
    committed = len(opened.prompt) - len(PROMPT) - 1
    assert committed > 1
    assert opened.rules.carried == committed + 1
    assert opened.max_tokens == COUNT - committed
    assert (opened.rules.min_tokens, opened.rules.presence_penalty, opened.rules.seed) == (7, 0.5, 3)


def test_every_rule_is_carried_over(bundle: Bundle) -> None:
    asked = make_request(
        bundle,
        PROMPT,
        "auto",
        temperature=0.75,
        top_k=5,
        top_p=0.5,
        min_p=0.25,
        seed=9,
        repetition_penalty=1.5,
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        logit_bias={3: 1.5},
        banned_tokens=[4],
        allowed_tokens=[3, 5, 6],
        min_tokens=2,
        max_tokens=9,
    )
    rest = resumed(asked, [3, 5])
    names = [name for name in dir(asked.rules) if not name.startswith("_") and name != "validate"]
    assert {name: getattr(rest.rules, name) for name in names} == {
        name: getattr(asked.rules, name) for name in names
    } | {"carried": 2}
    assert (rest.prompt, rest.max_tokens, rest.earlier) == ([*PROMPT, 3, 5], 7, (3, 5))
    assert resumed(asked, []) is asked


@pytest.mark.parametrize("messages", range(2, 7))
def test_w1_a_stop_string_may_span_the_loss(bundle: Bundle, messages: int) -> None:
    target = scripted(ids_of("abxyzmno"), len(PROMPT))
    clouds = Clouds(FakeCloud(target, vanish_after=messages), FakeCloud(target))
    with edge_of(bundle, clouds, drafter=FakeDrafter(target), draft_length=0) as edge:
        stream = edge.stream(PROMPT, max_tokens=20, stop="xyz")
        shown = [piece.text for piece in stream]
    assert "".join(shown) == stream.result.text == "ab"
    assert stream.result.finish_reason == "stop"


@pytest.mark.parametrize("messages", range(2, 6))
def test_w1_ends_are_where_they_were(bundle: Bundle, messages: int) -> None:
    whole = decode_plainly(TARGET, PROMPT, COUNT)
    stop = whole[6]
    expected = whole[: whole.index(stop) + 1]
    clouds = Clouds(FakeCloud(TARGET, vanish_after=messages), FakeCloud(TARGET))
    with edge_of(with_eos(bundle, stop), clouds, draft_length=1) as edge:
        result = edge.generate(PROMPT, max_tokens=COUNT)
    assert (result.token_ids, result.finish_reason) == (expected, "stop")


def test_figures_add_up_over_the_connections(bundle: Bundle) -> None:
    clouds = Clouds(FakeCloud(TARGET, vanish_after=4), FakeCloud(TARGET))
    with edge_of(bundle, clouds) as edge:
        stats = edge.generate(PROMPT, max_tokens=COUNT).stats
    opened = [message for cloud in clouds.made for message in cloud.received]
    hello = sum(
        len(_core.encode(message)) for message in opened if isinstance(message, _core.Hello | _core.Close)
    )
    assert stats.bytes_up == sum(cloud.bytes_up for cloud in clouds.made) - hello
    assert stats.rounds > 4


def test_without_patience_a_loss_is_an_error_at_once(bundle: Bundle) -> None:
    clouds = Clouds(FakeCloud(TARGET, vanish_after=4), FakeCloud(TARGET))
    with edge_of(bundle, clouds, reconnect_for=0.0) as edge, pytest.raises(LinkError) as caught:
        edge.generate(PROMPT, max_tokens=COUNT)
    assert caught.value.partial is not None
    assert len(clouds.made) == 1


def test_a_cloud_that_does_not_come_back_ends_the_request_in_time(bundle: Bundle) -> None:
    clouds = Clouds(FakeCloud(TARGET, vanish_after=4), None)
    with (
        edge_of(bundle, clouds, reconnect_for=0.3) as edge,
        pytest.raises(LinkError, match=r"cannot reach the cloud \(tried for") as caught,
    ):
        edge.generate(PROMPT, max_tokens=COUNT)
    partial = caught.value.partial
    assert partial is not None
    assert partial.token_ids == WHOLE[: len(partial.token_ids)]


def test_a_cloud_that_connects_and_does_nothing_else_is_not_progress(bundle: Bundle) -> None:
    """Every attempt is welcomed and then lost: the patience of the request counts on."""
    links = iter([FakeCloud(TARGET, vanish_after=4)])
    with (
        edge_of(
            bundle, lambda: next(links, None) or FakeCloud(TARGET, vanish_after=1), reconnect_for=0.3
        ) as edge,
        pytest.raises(LinkError),
    ):
        edge.generate(PROMPT, max_tokens=COUNT)


def test_another_model_behind_the_address_is_an_error(bundle: Bundle) -> None:
    fault = _core.Fault(code=_core.FaultCode.tokenizer, message="tokenizers differ from id 17")
    clouds = Clouds(FakeCloud(TARGET, vanish_after=4), FakeCloud(TARGET, alter=lambda message: fault))
    with edge_of(bundle, clouds) as edge, pytest.raises(UsageError, match="differ from id 17"):
        edge.generate(PROMPT, max_tokens=COUNT)


def test_a_smaller_context_behind_the_address_ends_the_text_there(bundle: Bundle) -> None:
    clouds = Clouds(FakeCloud(TARGET, vanish_after=6), FakeCloud(TARGET, max_context=len(PROMPT) + 4))
    with edge_of(bundle, clouds) as edge:
        result = edge.generate(PROMPT, max_tokens=COUNT)
    assert result.finish_reason == "context"
    assert result.token_ids == WHOLE[: len(result.token_ids)]


class BusyOnce(FakeCloud):
    """Has no room for the first request that is opened. ``wait_ms``: when to come back."""

    def __init__(self, choose: Choose, wait_ms: int = 10) -> None:
        super().__init__(choose)
        self._wait_ms = wait_ms
        self._full = True

    def send(self, frame: bytes) -> None:
        message = _core.decode(frame)
        if not self._full or not isinstance(message, _core.Open):
            super().send(frame)
            return
        self._full = False
        fault = _core.Fault(
            request=message.request, code=_core.FaultCode.busy, message="full", retry_after_ms=self._wait_ms
        )
        self._down(fault)


def test_a_busy_cloud_is_waited_for_in_mid_answer_but_not_at_its_start(bundle: Bundle) -> None:
    clouds = Clouds(FakeCloud(TARGET, vanish_after=4), BusyOnce(TARGET), None)
    with edge_of(bundle, clouds) as edge:
        assert edge.generate(PROMPT, max_tokens=COUNT).token_ids == WHOLE
    with edge_of(bundle, Clouds(BusyOnce(TARGET))) as edge, pytest.raises(LinkError, match="busy") as caught:
        edge.generate(PROMPT, max_tokens=COUNT)
    assert caught.value.retry_after == 0.01


def test_a_busy_cloud_keeps_its_connection(bundle: Bundle) -> None:
    """A fault of a request is the end of that alone, so the wait is all that is lost."""
    drafts = iter(range(100))

    def limit(message: Any) -> Any:
        if isinstance(message, _core.Verdict) and message.round and next(drafts) == 3:
            cloud._open = None
            return _core.Fault(
                request=message.request, code=_core.FaultCode.busy, message="slowly", retry_after_ms=10
            )
        return message

    cloud = FakeCloud(TARGET, alter=limit)
    clouds = Clouds(cloud, None)
    with edge_of(bundle, clouds) as edge:
        assert edge.generate(PROMPT, max_tokens=COUNT).token_ids == WHOLE
        assert edge.generate(PROMPT, max_tokens=COUNT).token_ids == WHOLE
    assert clouds.made == [cloud]


def test_no_cloud_makes_a_request_wait_longer_than_it_has_patience(bundle: Bundle) -> None:
    """However long it wants to be left alone for; the error tells."""
    clouds = Clouds(FakeCloud(TARGET, vanish_after=4), BusyOnce(TARGET, wait_ms=(1 << 32) - 1))
    with edge_of(bundle, clouds, reconnect_for=0.3) as edge:
        stream = edge.stream(PROMPT, max_tokens=COUNT)
        guard = threading.Timer(LIMIT, stream.close)
        guard.start()
        with pytest.raises(LinkError, match=r"busy: full \(tried for") as caught:
            list(stream)
        guard.cancel()
        guard.join()
    assert caught.value.partial is not None and caught.value.partial.token_ids
    assert caught.value.retry_after is not None and caught.value.retry_after > 4e6


@pytest.mark.parametrize("where", ["waiting", "alone"])
def test_a_request_without_a_cloud_can_be_cancelled(bundle: Bundle, where: str) -> None:
    clouds = Clouds(FakeCloud(TARGET, vanish_after=4), None)
    happened = threading.Event()
    kind = {"waiting": "lost", "alone": "offline"}[where]

    def hear(event: LinkEvent) -> None:
        if event.kind == kind:
            happened.set()

    offline = 0.0 if where == "alone" else None
    with edge_of(bundle, clouds, on_link=hear, offline_after=offline) as edge:
        stream = edge.stream(PROMPT, max_tokens=4000)
        next(stream)
        assert happened.wait(LIMIT)
        stream.close()
    assert stream.result.finish_reason == "cancelled"


@pytest.mark.parametrize(
    ("option", "value"), [("reconnect_for", -1.0), ("reconnect_for", float("inf")), ("offline_after", -0.5)]
)
def test_bad_seconds_are_named(bundle: Bundle, option: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{option} is {value}"):
        edge_of(bundle, Clouds(FakeCloud(TARGET)), **{option: value})


def test_events_are_sentences() -> None:
    assert str(LinkEvent("lost", 0.0, "lost the connection to x")) == (
        "lost the connection to x; waiting for another connection"
    )
    assert "3.2 s: this device goes on alone" in str(LinkEvent("offline", 3.21))
    assert "after 4.0 s: the target goes on" in str(LinkEvent("back", 4.0))
