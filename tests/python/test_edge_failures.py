"""A runtime whose cloud fails: whose error it is, what is kept, and that the next request is spared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import LinkError, PeerError, UsageError
from acespec_edge.result import Piece
from acespec_edge.transport import Received
from tests.clock import LIMIT
from tests.python.edge_kit import DRAFTER, PROMPT, TARGET, ids_of, runtime, unhurried
from tests.python.fake_bundle import make_bundle
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import FakeDrafter, decode_plainly, scripted

pytestmark = pytest.mark.usefixtures("threads_end")


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "bundle")


@pytest.mark.parametrize("messages", [1, 2, 3, 4])
def test_w1_a_vanished_cloud_is_an_error_that_keeps_what_came(bundle: Bundle, messages: int) -> None:
    cloud = FakeCloud(TARGET, vanish_after=messages)
    with runtime(bundle, cloud=cloud, draft_length=3) as edge:
        stream = edge.stream(PROMPT, max_tokens=40)
        pieces: list[Piece] = []
        with pytest.raises(LinkError) as caught:
            pieces.extend(stream)
    partial = caught.value.partial
    assert partial is not None
    assert partial.finish_reason == "error"
    assert partial.token_ids == decode_plainly(TARGET, PROMPT, 40)[: len(partial.token_ids)]
    assert (len(partial.token_ids) > 0) == (messages > 1)
    assert partial.usage.completion_tokens == len(partial.token_ids)
    assert stream.result == partial


def test_w2_silence_is_noticed_within_the_timeout(bundle: Bundle) -> None:
    cloud = FakeCloud(TARGET, silent_after=3)
    with runtime(bundle, cloud=cloud, timeout=0.2) as edge:
        began = time.monotonic()
        with pytest.raises(LinkError, match=r"no answer from the cloud for 0\.2 s") as caught:
            edge.generate(PROMPT, max_tokens=40, stop="ENDING")
        assert time.monotonic() - began < LIMIT
    assert caught.value.partial is not None
    assert caught.value.partial.token_ids


def test_the_next_request_connects_anew_after_a_loss(bundle: Bundle) -> None:
    clouds = iter([FakeCloud(TARGET, vanish_after=3), FakeCloud(TARGET)])
    with EdgeRuntime(
        bundle, lambda: next(clouds), drafter=FakeDrafter(DRAFTER), draft_length=8, reconnect_for=0.0
    ) as edge:
        with pytest.raises(LinkError):
            edge.generate(PROMPT, max_tokens=40)
        assert edge.generate(PROMPT, max_tokens=40).token_ids == decode_plainly(TARGET, PROMPT, 40)


def test_a_lying_cloud_is_a_peer_error(bundle: Bundle) -> None:
    def lie(message: Any) -> Any:
        if isinstance(message, _core.Verdict) and message.round == 2:
            message.base += 1
        return message

    cloud = FakeCloud(TARGET, alter=lie)
    with runtime(bundle, cloud=cloud) as edge, pytest.raises(PeerError, match="base"):
        edge.generate(PROMPT, max_tokens=40)
    assert cloud.closed


def test_a_cloud_that_does_not_welcome_is_left(bundle: Bundle) -> None:
    fault = _core.Fault(code=_core.FaultCode.tokenizer, message="tokenizers differ from id 17")
    cloud = FakeCloud(TARGET, alter=lambda message: fault)
    with pytest.raises(UsageError, match="differ from id 17"):
        runtime(bundle, cloud=cloud)
    assert cloud.closed


def test_held_text_and_pieces_add_up_after_an_error(bundle: Bundle) -> None:
    text = "abxy"
    target = scripted(ids_of(text), len(PROMPT))
    cloud = FakeCloud(target, vanish_after=5)
    pieces: list[Piece] = []
    with runtime(bundle, target, target, cloud=cloud, draft_length=0) as edge:
        stream = edge.stream(PROMPT, max_tokens=30, stop="xyz")
        with pytest.raises(LinkError):
            pieces.extend(stream)
    shown: Sequence[str] = [piece.text for piece in pieces]
    assert "".join(shown) == stream.result.text == text


async def test_async_errors_carry_the_partial_result(bundle: Bundle) -> None:
    with (
        runtime(bundle, cloud=FakeCloud(TARGET, vanish_after=3)) as edge,
        pytest.raises(LinkError) as caught,
    ):
        await edge.agenerate(PROMPT, max_tokens=40)
    assert caught.value.partial is not None


def test_a_link_that_dies_at_the_cancel_does_not_spoil_a_whole_result(bundle: Bundle) -> None:
    class DiesAtCancel(FakeCloud):
        def send(self, frame: bytes) -> None:
            if isinstance(_core.decode(frame), _core.Cancel):
                raise LinkError("lost at the cancel")
            super().send(frame)

    target = scripted(ids_of("abcxyzmno"), len(PROMPT))
    clouds = [DiesAtCancel(target), FakeCloud(target)]
    links = iter(clouds)
    with EdgeRuntime(bundle, lambda: next(links), drafter=FakeDrafter(target)) as edge:
        result = edge.generate(PROMPT, max_tokens=20, stop="xyz")
        assert (result.text, result.finish_reason) == ("abc", "stop")
        assert clouds[0].closed
        assert edge.generate(PROMPT, max_tokens=3).text == "abc"


class Faulty(FakeCloud):
    """Answers the first message of a kind with a fault, of the request or (``session``) of the session."""

    def __init__(self, kind: type, code: _core.FaultCode, *, session: bool = False) -> None:
        super().__init__(unhurried(TARGET))
        self._kind: type | None = kind
        self._code = code
        self._of_session = session

    def send(self, frame: bytes) -> None:
        message = _core.decode(frame)
        if self._kind is None or not isinstance(message, self._kind):
            super().send(frame)
            return
        self._kind = self._open = None
        number = 0 if self._of_session else message.request
        self._down(_core.Fault(request=number, code=self._code, message="cannot be served"))


@pytest.mark.parametrize(
    ("code", "kind"), [("request", UsageError), ("internal", PeerError), ("busy", LinkError)]
)
def test_a_fault_of_a_request_keeps_the_connection(bundle: Bundle, code: str, kind: type[Exception]) -> None:
    cloud = Faulty(_core.Draft, getattr(_core.FaultCode, code))
    with runtime(bundle, cloud=cloud) as edge:
        with pytest.raises(kind, match="cannot be served"):
            edge.generate(PROMPT, max_tokens=20)
        assert not cloud.closed
        assert edge.generate(PROMPT, max_tokens=20).token_ids == decode_plainly(TARGET, PROMPT, 20)
    assert sum(isinstance(message, _core.Hello) for message in cloud.received) == 1


@pytest.mark.parametrize("code", ["request", "internal", "busy"])
def test_a_fault_of_a_cancelled_request_is_not_the_next_ones(bundle: Bundle, code: str) -> None:
    cloud = Faulty(_core.Cancel, getattr(_core.FaultCode, code))
    with runtime(bundle, cloud=cloud) as edge:
        with edge.stream(PROMPT, max_tokens=4000) as stream:
            next(stream)
        assert edge.generate(PROMPT, max_tokens=5).token_ids == decode_plainly(TARGET, PROMPT, 5)
        assert not cloud.closed


@pytest.mark.parametrize("kind", [_core.Draft, _core.Cancel])
def test_after_a_fault_of_the_session_the_next_request_connects_anew(bundle: Bundle, kind: type) -> None:
    clouds = [Faulty(kind, _core.FaultCode.unauthorized, session=True), FakeCloud(TARGET)]
    links = iter(clouds)
    with EdgeRuntime(bundle, lambda: next(links), drafter=FakeDrafter(DRAFTER), draft_length=8) as edge:
        stream = edge.stream(PROMPT, max_tokens=4000)
        next(stream)
        if kind is _core.Draft:
            with pytest.raises(UsageError, match="cannot be served"):
                list(stream)
        stream.close()
        assert edge.generate(PROMPT, max_tokens=5).token_ids == decode_plainly(TARGET, PROMPT, 5)
    assert clouds[0].closed


class SlowPrefill(FakeCloud):
    """Lets nothing through for half a second after an Open."""

    _ready = 0.0

    def send(self, frame: bytes) -> None:
        if isinstance(_core.decode(frame), _core.Open):
            self._ready = time.monotonic() + 0.5
        super().send(frame)

    def receive(self, timeout: float) -> Received | None:
        if time.monotonic() < self._ready:
            time.sleep(min(timeout, 0.01))
            return None
        return super().receive(timeout)


@pytest.mark.parametrize("mode", ["auto", "cloud"])
def test_a_long_prefill_is_no_lost_cloud(bundle: Bundle, mode: Any) -> None:
    prompt = PROMPT * 8
    with runtime(bundle, cloud=SlowPrefill(TARGET), timeout=0.2) as edge:
        result = edge.generate(prompt, max_tokens=8, mode=mode)
    assert result.token_ids == decode_plainly(TARGET, prompt, 8)


def test_after_the_first_token_the_wait_is_the_timeout_again(bundle: Bundle) -> None:
    with (
        runtime(bundle, cloud=FakeCloud(TARGET, silent_after=2), timeout=0.2, mode="cloud") as edge,
        pytest.raises(LinkError, match=r"no answer from the cloud for 0\.2 s"),
    ):
        edge.generate(PROMPT, max_tokens=8)


def test_a_cloud_that_never_welcomes_is_given_up_soon(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acespec_edge.channel._WELCOME_TIMEOUT", 0.2)
    cloud = FakeCloud(TARGET, silent_after=0)
    with pytest.raises(LinkError, match=r"no answer from the cloud for 0\.2 s"):
        runtime(bundle, cloud=cloud)
    assert cloud.closed


def test_a_cancel_without_answer_costs_the_connection_and_nothing_else(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acespec_edge.channel._SETTLE_TIMEOUT", 0.2)
    clouds = [FakeCloud(TARGET, silent_after=3), FakeCloud(TARGET)]
    links = iter(clouds)
    with EdgeRuntime(bundle, lambda: next(links), drafter=FakeDrafter(DRAFTER), draft_length=8) as edge:
        with edge.stream(PROMPT, max_tokens=4000) as stream:
            next(stream)
        began = time.monotonic()
        assert edge.generate(PROMPT, max_tokens=5).token_ids == decode_plainly(TARGET, PROMPT, 5)
        assert time.monotonic() - began < LIMIT
    assert clouds[0].closed
