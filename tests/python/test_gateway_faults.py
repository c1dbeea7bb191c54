"""What the gateway does when the cloud, a client or the gateway itself goes away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import LinkError
from acespec_edge.gateway import sse
from acespec_edge.gateway.errors import ApiError
from acespec_edge.gateway.service import Gateway, Wish
from acespec_edge.gateway.sse import EventStream
from acespec_edge.result import Piece, Result
from tests.clock import LIMIT, wait_until
from tests.python.edge_kit import runtime, unhurried
from tests.python.fake_cloud import FakeCloud, Message
from tests.python.fakes import Choose, FakeDrafter
from tests.python.gateway_kit import Live, chat_bundle, events, serving, writes

pytestmark = pytest.mark.usefixtures("threads_end")

TARGET = writes("hello there, edge.")
SLOW = unhurried(TARGET)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return chat_bundle(tmp_path / "bundle")


def reconnecting(bundle: Bundle, *clouds: FakeCloud, **options: Any) -> EdgeRuntime:
    """A runtime that gets the next of ``clouds`` whenever it connects; it waits for none."""
    links = iter(clouds)

    def connector() -> FakeCloud:
        with contextlib.suppress(StopIteration):
            return next(links)
        raise LinkError("cannot reach the cloud at nowhere")

    options.setdefault("reconnect_for", 0.0)
    return EdgeRuntime(bundle, connector, drafter=FakeDrafter(TARGET), draft_length=8, **options)


def fault(answer: httpx.Response) -> tuple[str, dict[str, Any]]:
    """What a stream that ended with an error showed before it, and the error."""
    *chunks, last = events(answer)
    assert last != "[DONE]" and list(last) == ["error"]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    return text, last["error"]


@pytest.mark.parametrize("stream", [False, True])
def test_w1_a_cloud_that_is_lost_before_the_first_token_is_a_status(bundle: Bundle, stream: bool) -> None:
    with serving(reconnecting(bundle, FakeCloud(TARGET, vanish_after=1))) as live:
        for _ in range(2):
            answer = live.chat(stream=stream)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == ("cloud_lost", "server_error")
            assert "cannot reach the cloud" in error["message"]


def test_w1_a_cloud_that_is_lost_in_a_stream_is_an_error_event(bundle: Bundle) -> None:
    clouds = FakeCloud(TARGET, vanish_after=3), FakeCloud(TARGET)
    with serving(reconnecting(bundle, *clouds)) as live:
        text, error = fault(live.chat(stream=True))
        assert text and "hello there, edge.".startswith(text)
        assert (error["code"], error["message"]) == ("cloud_lost", "the fake link is lost")
        answer = live.chat(max_tokens=18).json()
        assert answer["choices"][0]["message"]["content"] == "hello there, edge."


@pytest.mark.parametrize("stream", [False, True])
def test_w1_a_cloud_that_comes_back_in_an_answer_is_not_noticed(bundle: Bundle, stream: bool) -> None:
    clouds = FakeCloud(TARGET, vanish_after=3), FakeCloud(TARGET)
    with serving(reconnecting(bundle, *clouds, reconnect_for=60.0)) as live:
        answer = live.chat(max_tokens=18, stream=stream)
        if stream:
            *chunks, last = events(answer)
            assert last == "[DONE]"
            text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
            assert not any("acespec" in chunk for chunk in chunks)
        else:
            text = answer.json()["choices"][0]["message"]["content"]
            assert "acespec" not in answer.json()["usage"]
        assert text == "hello there, edge."


def test_what_the_drafter_wrote_alone_is_marked(bundle: Bundle) -> None:
    edge = reconnecting(bundle, FakeCloud(TARGET, vanish_after=3), reconnect_for=60.0, offline_after=0.0)
    with serving(edge) as live:
        *chunks, usage, last = events(
            live.chat(max_tokens=18, stream=True, stream_options={"include_usage": True})
        )
        assert last == "[DONE]"
        marked = [chunk["choices"][0]["delta"]["content"] for chunk in chunks if "acespec" in chunk]
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert text == "hello there, edge."
        assert 0 < len("".join(marked)) < len(text)
        assert text.endswith("".join(marked))
        assert {chunk["acespec"]["origin"] for chunk in chunks if "acespec" in chunk} == {"edge"}
        assert usage["usage"]["acespec"] == {"edge_tokens": len("".join(marked))}
        whole = live.chat(max_tokens=18).json()
        assert whole["usage"]["acespec"] == {"edge_tokens": 18}


async def test_a_long_pause_in_a_stream_is_filled_with_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "_COMMENT_AFTER", 0.02)
    go_on = asyncio.Event()

    async def pausing() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0.1)
        yield b"data: 1\n\n"
        await go_on.wait()
        yield b"data: 2\n\n"

    sent: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])
            if sent.count(b": waiting\n\n") == 3:
                go_on.set()

    async def receive() -> Any:
        await asyncio.Event().wait()

    answer = EventStream(pausing(), contextlib.ExitStack())
    await asyncio.wait_for(answer({"type": "http"}, receive, send), LIMIT)
    assert sent[0] == b"data: 1\n\n", "a comment would have settled the status"
    assert sent[-2:] == [b"data: 2\n\n", b""]
    assert set(sent[1:-2]) == {b": waiting\n\n"}


def test_a_cloud_that_lies_is_a_bad_gateway(bundle: Bundle) -> None:
    def lie(message: Message) -> Message:
        if isinstance(message, _core.Verdict):
            return _core.Verdict(request=message.request, round=0, base=999, tokens=[1])
        return message

    with serving(reconnecting(bundle, FakeCloud(TARGET, alter=lie))) as live:
        answer = live.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "cloud_fault")


def test_a_busy_cloud_says_when_to_come_back(bundle: Bundle) -> None:
    def busy(message: Message) -> Message:
        if isinstance(message, _core.Verdict):
            return _core.Fault(
                request=message.request, code=_core.FaultCode.busy, message="full", retry_after_ms=7000
            )
        return message

    with serving(reconnecting(bundle, FakeCloud(TARGET, alter=busy))) as live:
        answer = live.chat()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
        assert answer.json()["error"]["code"] == "cloud_busy"


def cancels(cloud: FakeCloud) -> int:
    return sum(isinstance(message, _core.Cancel) for message in cloud.received)


def request(live: Live, **fields: Any) -> socket.socket:
    """A connection with a chat request on it, whose answer nobody reads yet."""
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    sock = socket.create_connection(("127.0.0.1", live.port), LIMIT)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    sock.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
    return sock


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_stops_the_work_on_both_sides(bundle: Bundle, stream: bool) -> None:
    cloud = FakeCloud(SLOW)
    with serving(runtime(bundle, drafter=SLOW, cloud=cloud)) as live:
        sock = request(live, stream=stream)
        if stream:
            assert sock.recv(10).startswith(b"HTTP/1.1 2")
        else:
            wait_until(lambda: len(cloud.drafts) > 2)
        sock.close()
        wait_until(lambda: live.gateway.turns.inside == 0)
        assert cancels(cloud) == 1
        assert live.chat(max_tokens=5).json()["choices"][0]["message"]["content"] == "hello"


def test_a_client_that_goes_away_while_it_waits_costs_nothing(bundle: Bundle) -> None:
    cloud = FakeCloud(SLOW)
    with serving(runtime(bundle, drafter=SLOW, cloud=cloud)) as live:
        running = request(live, stream=True)
        running.recv(10)
        waiting = request(live)
        wait_until(lambda: live.gateway.turns.inside == 2)
        waiting.close()
        wait_until(lambda: live.gateway.turns.inside == 1)
        running.close()
        wait_until(lambda: live.gateway.turns.inside == 0)
        assert sum(isinstance(message, _core.Open) for message in cloud.received) == 1


def test_a_full_room_is_429(bundle: Bundle) -> None:
    with serving(runtime(bundle, drafter=SLOW, cloud=FakeCloud(SLOW)), room=2) as live:
        held = [request(live, stream=True) for _ in range(2)]
        wait_until(lambda: live.gateway.turns.inside == 2)
        for stream in (False, True):
            answer = live.chat(stream=stream)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            assert answer.json()["error"]["type"] == "rate_limit_error"
        assert live.http.get("/models").status_code == 200
        for sock in held:
            sock.close()
        wait_until(lambda: live.gateway.turns.inside == 0)
        assert live.chat(max_tokens=1).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_gateway_that_is_told_to_end_says_so(bundle: Bundle, stream: bool) -> None:
    cloud = FakeCloud(SLOW)
    answers: list[httpx.Response] = []
    with serving(runtime(bundle, drafter=SLOW, cloud=cloud)) as live:
        asking = [threading.Thread(target=lambda: answers.append(live.chat(stream=stream))) for _ in range(2)]
        for thread in asking:
            thread.start()
        wait_until(lambda: len(cloud.drafts) > 2 and live.gateway.turns.inside == 2)
        live.server.should_exit = True
        for thread in asking:
            thread.join(LIMIT)
    assert cloud.closed
    began = [answer for answer in answers if answer.status_code == 200]
    assert len(began) == int(stream)
    errors = [fault(answer)[1] for answer in began]
    for answer in answers:
        if answer not in began:
            assert answer.status_code == 503
            errors.append(answer.json()["error"])
    assert [error["code"] for error in errors] == ["shutting_down"] * 2


async def test_a_reader_that_is_slow_holds_no_turn(bundle: Bundle) -> None:
    with runtime(bundle, TARGET, TARGET) as edge:
        gateway = Gateway(edge)
        first, second = await gateway.jobs(["hi"], Wish({}, n=2, max_tokens=18), raw=True)
        async with contextlib.aclosing(gateway.run(first)) as slow:
            assert isinstance(await anext(slow), Piece)
            parts = [part async for part in gateway.run(second)]
            assert isinstance(parts[-1], Result) and parts[-1].text == "hello there, edge."
            rest = [part async for part in slow]
            assert isinstance(rest[-1], Result) and rest[-1].text == "hello there, edge."


async def test_closing_a_run_waits_for_the_end_of_the_work(bundle: Bundle) -> None:
    cloud = FakeCloud(SLOW)
    with runtime(bundle, drafter=SLOW, cloud=cloud) as edge:
        gateway = Gateway(edge)
        (job,) = await gateway.jobs(["hi"], Wish({}), raw=True)
        run = gateway.run(job)
        assert isinstance(await anext(run), Piece)
        await run.aclose()
        assert cancels(cloud) == 1


async def test_what_is_stopped_before_it_began_ends_too(bundle: Bundle) -> None:
    with runtime(bundle, TARGET, TARGET) as edge:
        gateway = Gateway(edge)
        (job,) = await gateway.jobs(["hi"], Wish({}), raw=True)
        first = asyncio.ensure_future(anext(gateway.run(job)))
        await asyncio.sleep(0)  # the run has made its task, which has not begun
        gateway.stop()
        for run in (first, anext(gateway.run(job))):
            with pytest.raises(ApiError, match="shutting down"):
                await asyncio.wait_for(run, LIMIT)


def test_a_head_that_never_comes_ends_the_connection(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acespec_edge.http_connection._HEAD_TIMEOUT", 0.2)
    with serving(runtime(bundle, drafter=SLOW, cloud=FakeCloud(SLOW))) as live:
        with socket.create_connection(("127.0.0.1", live.port), LIMIT) as sock:
            sock.sendall(b"GET /v1/models HTTP/1.1\r\nHost: local")
            assert sock.recv(1) == b""
        with socket.create_connection(("127.0.0.1", live.port), LIMIT) as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz")
            answer = b""
            while data := sock.recv(1000):
                answer += data
            assert answer.startswith(b"HTTP/1.1 200") and answer.count(b"HTTP/1.1") == 1
        # An answer that takes longer is none of its business.
        assert live.chat(max_tokens=300).json()["usage"]["completion_tokens"] == 300


async def blocked(message: Any) -> None:
    if message["type"] == "http.response.body":
        await asyncio.Event().wait()


async def silent() -> Any:
    await asyncio.Event().wait()


async def test_a_client_that_reads_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "_SEND_TIMEOUT", 0.05)
    closed = []

    async def forever() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"data: {}\n\n"
        finally:
            closed.append("events")

    held = contextlib.ExitStack()
    held.callback(closed.append, "place")
    await asyncio.wait_for(EventStream(forever(), held)({"type": "http"}, silent, blocked), LIMIT)
    assert closed == ["events", "place"]


async def test_an_answer_that_nobody_waits_for_any_more_gives_its_place_back() -> None:
    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def never() -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield b""

    closed: list[str] = []
    held = contextlib.ExitStack()
    held.callback(closed.append, "place")
    await asyncio.wait_for(EventStream(never(), held)({"type": "http"}, gone, blocked), LIMIT)
    assert closed == ["place"]


def test_a_fault_of_the_gateway_itself_is_500(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    def broken(sequence: Any) -> int:
        if len(sequence) > 4:
            raise ZeroDivisionError("no such luck")
        return TARGET(sequence)

    def answers(choose: Choose) -> list[httpx.Response]:
        with serving(runtime(bundle, TARGET, choose)) as live:
            return [live.chat(), live.chat(stream=True)]

    whole, streamed = answers(broken)
    assert (whole.status_code, whole.json()["error"]["type"]) == (500, "server_error")
    assert "no such luck" in whole.json()["error"]["message"]
    assert fault(streamed)[1]["code"] == "engine_error"
    assert [record.message for record in caplog.records] == ["a generation failed"] * 2


def test_a_fault_of_the_code_is_500_and_the_next_request_is_served(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(runtime(bundle, TARGET, TARGET)) as live:
        with monkeypatch.context() as broken:
            broken.setattr("acespec_edge.gateway.app.chat_form", None)
            answer = live.chat()
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
        assert live.chat(max_tokens=1).status_code == 200
