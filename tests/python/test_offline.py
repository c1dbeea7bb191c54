"""Requests that the drafter goes on with alone while there is no cloud."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from acespec_edge.bundle import Bundle
from acespec_edge.errors import LinkError
from acespec_edge.result import Piece
from acespec_edge.resumption import LinkEvent
from acespec_edge.transport import Link
from tests.python.edge_kit import PROMPT, TARGET
from tests.python.fake_bundle import make_bundle
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import (
    FakeDrafter,
    decode_plainly,
    mixing,
)
from tests.python.uplink_kit import Clouds, edge_of

pytestmark = pytest.mark.usefixtures("threads_end", "at_once")

COUNT = 40
OTHER = mixing(5, vocabulary=40)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "bundle")


class Gate:
    """A connector whose cloud is away from the first loss until so many tokens were made alone."""

    def __init__(self, first: FakeCloud, then: FakeCloud) -> None:
        self._links = [first, then]
        self.back = threading.Event()
        self.attempts = 0

    def __call__(self) -> Link:
        self.attempts += 1
        if self.attempts > 1 and not self.back.is_set():
            raise LinkError("cannot reach the cloud")
        return self._links[min(self.attempts - 1, 1) if not self.back.is_set() else 1]


class Watched(FakeDrafter):
    """Another model than the target, which opens the gate after some tokens of its own, and waits then."""

    def __init__(self, gate: Gate, tokens: int) -> None:
        super().__init__(OTHER)
        self._gate = gate
        self._left = tokens
        self.offline = False

    def take_chain(self, length: int) -> Any:
        taken = super().take_chain(length)
        if self.offline and self._left >= 0:
            self._left -= 1
            if self._left < 0:
                self._gate.back.set()
        return taken


def alone_then_together(prompt: Sequence[int], origins: Sequence[tuple[str, int]]) -> list[int]:
    sequence = list(prompt)
    for origin, count in origins:
        choose = TARGET if origin == "target" else OTHER
        sequence += decode_plainly(choose, sequence, count)
    return sequence[len(prompt) :]


def test_the_edge_goes_on_alone_says_so_and_gives_back(bundle: Bundle) -> None:
    gate = Gate(FakeCloud(TARGET, vanish_after=5), FakeCloud(TARGET))
    drafter = Watched(gate, 6)
    events: list[LinkEvent] = []

    def hear(event: LinkEvent) -> None:
        events.append(event)
        drafter.offline = event.kind == "offline"

    with edge_of(bundle, gate, drafter=drafter, on_link=hear, offline_after=0.0) as edge:
        stream = edge.stream(PROMPT, max_tokens=2000)
        pieces: list[Piece] = list(stream)
    result = stream.result
    origins = [origin for origin, _ in result.origins]
    assert origins == ["target", "edge", "target"]
    assert result.token_ids == alone_then_together(PROMPT, result.origins)
    assert sum(count for _, count in result.origins) == len(result.token_ids) == 2000
    offline = result.origins[1][1]
    assert offline >= 6
    assert result.stats.offline_tokens == result.usage.edge_tokens == offline
    assert sum(len(piece.token_ids) for piece in pieces if piece.origin == "edge") == offline
    assert [event.kind for event in events] == ["lost", "offline", "back"]
    assert result.to_dict()["origins"][1] == ["edge", offline]


def test_alone_to_the_end(bundle: Bundle) -> None:
    clouds = Clouds(FakeCloud(TARGET, vanish_after=5), None)
    with edge_of(bundle, clouds, drafter=FakeDrafter(OTHER), offline_after=0.0) as edge:
        result = edge.generate(PROMPT, max_tokens=COUNT)
    assert result.finish_reason == "length"
    assert [origin for origin, _ in result.origins] == ["target", "edge"]
    assert result.token_ids == alone_then_together(PROMPT, result.origins)


def test_a_device_that_starts_without_a_cloud(bundle: Bundle) -> None:
    events: list[LinkEvent] = []
    with edge_of(
        bundle, Clouds(None), drafter=FakeDrafter(OTHER), offline_after=0.0, on_link=events.append
    ) as edge:
        assert edge.welcome is None
        result = edge.generate(PROMPT, max_tokens=9)
    assert result.token_ids == decode_plainly(OTHER, PROMPT, 9)
    assert result.origins == [("edge", 9)]
    assert {event.kind for event in events} == {"lost", "offline"}
    with pytest.raises(LinkError, match="cannot reach"):
        edge_of(bundle, Clouds(None))


@pytest.mark.parametrize(
    ("options", "request_options"),
    [({}, {}), ({"offline_after": 0.0}, {"logprobs": 2}), ({"offline_after": 0.0}, {"mode": "cloud"})],
    ids=["strict", "logprobs", "cloud"],
)
def test_what_is_the_targets_alone_waits(
    bundle: Bundle, options: dict[str, Any], request_options: dict[str, Any]
) -> None:
    clouds = Clouds(FakeCloud(TARGET, vanish_after=1), None)
    events: list[LinkEvent] = []
    with (
        edge_of(bundle, clouds, reconnect_for=0.3, on_link=events.append, **options) as edge,
        pytest.raises(LinkError, match="tried for"),
    ):
        edge.generate(PROMPT, max_tokens=COUNT, **request_options)
    assert [event.kind for event in events] == ["lost"]


def test_a_drafter_that_holds_no_more_waits_for_the_target(bundle: Bundle) -> None:
    context = len(PROMPT) + 12
    gate = Gate(FakeCloud(TARGET, vanish_after=3), FakeCloud(TARGET))
    drafter = FakeDrafter(OTHER, context=context)

    def hear(event: LinkEvent) -> None:
        if event.kind == "offline":
            threading.Timer(0.3, gate.back.set).start()

    with edge_of(bundle, gate, drafter=drafter, context=context, on_link=hear, offline_after=0.0) as edge:
        result = edge.generate(PROMPT, max_tokens=COUNT)
    assert [origin for origin, _ in result.origins] == ["target", "edge", "target"]
    assert result.origins[0][1] + result.origins[1][1] == 12
    assert result.token_ids == alone_then_together(PROMPT, result.origins)
    assert result.finish_reason == "length"
