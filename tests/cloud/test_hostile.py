"""Clients that mean harm, at the socket of a live server. Whatever they say, their session alone ends, by a
Fault where the protocol can still be spoken; the server lives, an honest session that was open all the while
goes on with its text, and nobody hears a token of anybody else's.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from acespec_edge import _core
from cloud_stub.service import Service
from tests.clock import LIMIT, wait_until
from tests.cloud.bare import CONTINUATION, PING, UPGRADE, Bare, frame
from tests.cloud.live import LOGITS, PROMPT, TIMEOUT, Edge, running, serves
from tests.cloud.rig import plain_greedy

FaultCode = _core.FaultCode
WIDE = _core.Limits(max_bytes=1 << 24, max_nodes=1 << 16)
"""For messages that keep no limit of the server's."""

VICTIM = [7, 7, 7]


class Honest:
    """A session that is open while others misbehave; its text is checked at the end."""

    def __init__(self, address: str, service: Service) -> None:
        self._edge = Edge(address, service).greet()
        self._edge.say(_core.Open(request=1, prompt=VICTIM, max_tokens=1000))
        self._text: list[int] = list(self._edge.hear().tokens)
        self._round = 0

    def goes_on(self) -> None:
        """Asserts that it gets the next tokens of its own text."""
        expected = plain_greedy(LOGITS, VICTIM, len(self._text) + 3)
        self._round += 1
        base = len(VICTIM) + len(self._text)
        first = 4 * self._round
        draft = _core.Draft(
            request=1, round=self._round, base=base, first_node=first, tokens=expected[len(self._text) :][:2]
        )
        self._edge.say(draft)
        verdict = self._edge.hear()
        assert verdict.accepted_node == first + 1 and verdict.tokens == expected[-1:]
        self._text = expected

    def close(self) -> None:
        self._edge.close()


@pytest.fixture(scope="module")
def cloud() -> Iterator[tuple[Service, str, Honest]]:
    with running() as (service, address):
        honest = Honest(address, service)
        yield service, address, honest
        honest.close()
        wait_until(lambda: service.sessions == 0 and service.kv.reserved == 0)


@pytest.fixture
def unharmed(cloud: tuple[Service, str, Honest]) -> Iterator[tuple[Service, str]]:
    """The cloud, and that it is as it was when the test is over."""
    service, address, honest = cloud
    yield service, address
    wait_until(lambda: service.sessions == 1)
    honest.goes_on()
    serves(address, service)


def draft(*tokens: int, **fields: Any) -> _core.Draft:
    return _core.Draft(**({"request": 1, "round": 1, "base": 4, "tokens": list(tokens)} | fields))


def forged(offsets: bytes) -> bytes:
    """A draft of a tree with these offsets, which the codec would not write."""
    valid = bytes([0, *[1] * (len(offsets) - 1)])
    data = _core.encode(draft(*[3] * len(offsets), parent_offsets=list(valid), free_run=True))
    if not (at := data.find(valid)) > 0:
        # A chain needs no offsets on the wire: the second node beside the first makes it a tree.
        valid = bytes([0, 0, *[1] * (len(offsets) - 2)])
        data = _core.encode(draft(*[3] * len(offsets), parent_offsets=list(valid)))
        at = data.find(valid)
    return data[:at] + offsets + data[at + len(offsets) :]


def wrong_identifier(data: bytes) -> bytes:
    return data[:4] + b"ACXX" + data[8:]


BREACHES: dict[str, list[bytes]] = {
    "empty": [b""],
    "truncated": [_core.encode(draft(1, 2, 3))[:-3]],
    "head only": [_core.encode(draft(1, 2, 3))[:8]],
    "another table": [wrong_identifier(_core.encode(draft(1)))],
    "a table under another name": [b"".join([(d := _core.encode(draft(1)))[:4], b"ACOP", d[8:]])],
    "what only a cloud says: Welcome": [_core.encode(_core.Welcome())],
    "what only a cloud says: Verdict": [
        _core.encode(_core.Verdict(request=1, round=0, base=4, accepted_node=0, tokens=[1]))
    ],
    "Hello again": [_core.encode(_core.Hello(tokenizer=bytes(32), vocabulary=16))],
    "a huge tree": [_core.encode(draft(*[1] * 257), WIDE)],
    "more tokens than a prompt has": [
        _core.encode(
            _core.Open(request=2, prompt=[1] * 131_073, max_tokens=1), _core.Limits(max_prompt=1 << 20)
        )
    ],
    "a parent before the first node": [forged(bytes([0, 1, 1, 1, 1, 9, 1, 1]))],
    "a parent far before": [forged(bytes([0, 1, 255, 1, 1, 1, 1, 1]))],
    "a base before the prompt's end": [_core.encode(draft(1, base=2))],
    "a base that is not committed": [_core.encode(draft(1, base=5))],
    "numbers used twice": [
        _core.encode(draft(1, 2, free_run=False)),
        _core.encode(draft(3, 4, round=2, first_node=1)),
    ],
}
"""What is said behind Hello and Open; the last message is the breach."""


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_gets_a_fault_and_the_end(unharmed: tuple[Service, str], name: str) -> None:
    service, address = unharmed
    with Bare(address).greet(service) as bare:
        bare.send(frame(_core.encode(_core.Open(request=1, prompt=PROMPT, max_tokens=1000))))
        own = plain_greedy(LOGITS, PROMPT, 1000)
        assert bare.hear().tokens == own[:1]
        for data in BREACHES[name]:
            bare.send(frame(data))
        said = bare.rest()
        assert bare.close_code == 1000
    fault = said.pop()
    assert isinstance(fault, _core.Fault) and fault.code == FaultCode.protocol and fault.request == 0
    for verdict in said:
        # Whatever came before the breach is of the attacker's own text.
        assert verdict.request == 1 and verdict.tokens[-1] in own


OUTSIDE: dict[str, Any] = {
    "a prompt": _core.Open(request=2, prompt=[1, 16], max_tokens=1),
    "a prompt of the widest ids": _core.Open(request=2, prompt=[(1 << 31) - 1], max_tokens=1),
    "a ban": _core.Open(request=2, prompt=[1], max_tokens=1, rules=_core.SamplingRules(banned=[99])),
    "a draft": draft(16),
    "a resampled token": draft(1, resampled=16),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_v3_ids_outside_the_vocabulary(unharmed: tuple[Service, str], name: str) -> None:
    """A Fault of the request; the session, which has broken no rule of the wire, may go on."""
    service, address = unharmed
    with Edge(address, service).greet() as edge:
        if name.startswith(("a draft", "a resampled")):
            edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=9))
            edge.hear()
        edge.say(OUTSIDE[name])
        fault = edge.hear()
        assert fault.code == FaultCode.request and fault.request in (1, 2)
        assert "16" in fault.message or "99" in fault.message or "2147483647" in fault.message
        edge.say(_core.Open(request=3, prompt=PROMPT, max_tokens=1))
        assert edge.hear().tokens == plain_greedy(LOGITS, PROMPT, 1)


def test_messages_out_of_order(unharmed: tuple[Service, str]) -> None:
    _, address = unharmed
    for message in (_core.Open(request=1, prompt=PROMPT, max_tokens=1), draft(1), _core.Cancel(request=1)):
        with Bare(address) as bare:
            bare.send(frame(_core.encode(message)))
            (fault,) = bare.rest()
            assert fault.code == FaultCode.protocol and "Hello, Close would be right" in fault.message


def test_w3_what_comes_twice_or_late_changes_nothing(unharmed: tuple[Service, str]) -> None:
    service, address = unharmed
    expected = plain_greedy(LOGITS, PROMPT, 9)
    with Edge(address, service).greet() as edge:
        edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=9))
        edge.hear()
        first, second = draft(*expected[1:3]), draft(*expected[4:6], round=5, base=7, first_node=9)
        edge.say(first)
        edge.say(first)
        assert edge.hear().tokens == expected[3:4]
        edge.say(second)
        for old in (first, second, draft(9, round=4, base=4)):
            edge.say(old)
        assert edge.hear().tokens == expected[6:7]
        edge.say(_core.Cancel(request=1))
        assert edge.hear().finish == _core.Finish.cancelled


def test_what_another_session_said_is_worth_nothing_here(unharmed: tuple[Service, str]) -> None:
    """The recorded messages of a session, replayed on another connection: without its Open no tokens come,
    and with it those of the prompt that is sent, by nobody else's state."""
    service, address = unharmed
    expected = plain_greedy(LOGITS, PROMPT, 5)
    recorded = [draft(*expected[1:3]), draft(*expected[4:5], round=2, base=7, first_node=3)]
    with Bare(address).greet(service) as bare:
        for message in (*recorded, _core.Cancel(request=1), draft(1, request=9, base=10_000)):
            bare.send(frame(_core.encode(message)))
        bare.send(frame(_core.encode(_core.Close(reason="done"))))
        assert bare.rest() == []


def test_nobody_hears_of_another_session(unharmed: tuple[Service, str]) -> None:
    """Same numbers of requests, at the same time."""
    service, address = unharmed
    prompts = [[index, index, 3] for index in range(6)]
    texts = [plain_greedy(LOGITS, prompt, 40) for prompt in prompts]
    with contextlib.ExitStack() as stack:
        edges = [stack.enter_context(Edge(address, service)).greet() for _ in prompts]
        for edge, prompt in zip(edges, prompts, strict=True):
            edge.say(_core.Open(request=1, prompt=prompt, max_tokens=40, free_run=True))
        bare = stack.enter_context(Bare(address)).greet(service)
        for number in range(50):
            bare.send(frame(_core.encode(_core.Cancel(request=1))))
            bare.send(frame(_core.encode(draft(number % 16, round=number, base=4, first_node=1))))
        for edge, text in zip(edges, texts, strict=True):
            assert [token for _ in range(40) for token in edge.hear().tokens] == text
        bare.send(frame(b"\x00"))
        (fault,) = bare.rest()
        assert fault.code == FaultCode.protocol


OVERSIZED: dict[str, list[bytes]] = {
    "a length that no memory has": [frame(b"x", claimed=(1 << 62) - 1)],
    "a negative length": [frame(b"x", claimed=(1 << 64) - 1)],
    "one byte too many": [frame(b"", claimed=8 * 131_072 + 1)],
    "fragments that add up": [
        frame(bytes(1 << 19), final=False),
        *[frame(bytes(1 << 19), CONTINUATION, final=False)] * 3,
    ],
    "a ping too long": [frame(bytes(200), PING)],
    "a reserved opcode": [frame(b"x", 0x5)],
    "no mask": [b"\x82\x01x"],
    "not UTF-8": [frame(b"\xff\xfe", 0x1)],
}


@pytest.mark.parametrize("name", OVERSIZED)
def test_what_a_websocket_may_not_say(unharmed: tuple[Service, str], name: str) -> None:
    service, address = unharmed
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        with Bare(address).greet(service) as bare:
            for data in OVERSIZED[name]:
                bare.send(data)
            assert bare.rest() == []
            assert bare.close_code in (1002, 1007, 1009)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 << 10, "KiB: nothing is allocated because it was announced"


def test_vectors_that_claim_to_be_longer_than_the_message(unharmed: tuple[Service, str]) -> None:
    service, address = unharmed
    data = bytearray(_core.encode(_core.Open(request=1, prompt=[1] * 100, max_tokens=1)))
    at = bytes(data).find((200).to_bytes(4, "little"))
    assert at > 0, "the length of the packed prompt"
    for claimed in (201, 1 << 20, (1 << 31) - 1, (1 << 32) - 1):
        data[at : at + 4] = claimed.to_bytes(4, "little")
        with Bare(address).greet(service) as bare:
            bare.send(frame(bytes(data)))
            (fault,) = bare.rest()
            assert fault.code == FaultCode.protocol


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/spec HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        b"GET /" + b"a" * (1 << 17),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"\x00" * 100 + b"\r\n\r\n",
        b"POST /v1/spec HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        UPGRADE.replace(b"Version: 13", b"Version: 99"),
        UPGRADE.replace(b"Sec-WebSocket-Key", b"Sec-WebSocket-Lock"),
    ],
    ids=["headers", "line", "tls", "zeros", "post", "version", "no key"],
)
def test_heads_that_are_no_upgrade(unharmed: tuple[Service, str], head: bytes) -> None:
    _, address = unharmed
    with Bare(address, upgrade=False) as bare:
        bare.send(head)
        with contextlib.suppress(ConnectionError):
            answer = bare.socket.recv(65536)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer[:80]


def dribble(bare: Bare, data: bytes, again: bytes, over: Callable[[], bool] = lambda: False) -> None:
    """Sends a byte at a time, ``again`` over and over, until it is ``over`` or the server has hung up."""
    bare.socket.settimeout(0.02)
    deadline = time.monotonic() + LIMIT
    while not over():
        assert time.monotonic() < deadline, "the server keeps a slow client for ever"
        with contextlib.suppress(TimeoutError):
            try:
                bare.socket.sendall(data[:1])
                received = bare.socket.recv(65536)
            except ConnectionError:
                return
            if not received:
                return
            bare.keep(received)
        data = data[1:] or again


def test_a_slow_loris_in_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acespec_edge.http_connection._HEAD_TIMEOUT", 0.3)
    with running() as (service, address):
        with Bare(address, upgrade=False) as bare:
            dribble(bare, UPGRADE[:-2], again=b"X: y\r\n")
        with Edge(address, service).greet() as edge:
            time.sleep(0.4)  # past the limit of heads, which is none of a session's
            edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=1))
            assert edge.hear().tokens


@pytest.mark.parametrize("greeted", [False, True])
def test_a_slow_loris_in_its_messages(greeted: bool) -> None:
    """Pings and fragments that never end a message are no signs of life."""
    with running(handshake_timeout=0.3, idle_timeout=0.5) as (service, address):
        with Bare(address) as bare:
            if greeted:
                bare.greet(service)
            dribble(
                bare,
                frame(b"x", final=False),
                again=frame(b"", PING) + frame(b"y", CONTINUATION, final=False),
                over=lambda: service.counters.read()["sessions"] == 1 and service.sessions == 0,
            )
            bare.socket.settimeout(TIMEOUT)
            (end,) = bare.rest()
            assert isinstance(end, _core.Close if greeted else _core.Fault)
        serves(address, service)


def test_more_connections_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud_stub.server._SPARE_CONNECTIONS", 3)
    with running(max_sessions=2) as (service, address):
        honest = Honest(address, service)
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(Bare(address, upgrade=False)) for _ in range(30)]
            aborted = 0
            for bare in idle[10:]:
                bare.socket.settimeout(TIMEOUT)
                with contextlib.suppress(ConnectionError):
                    assert bare.socket.recv(1) == b""
                aborted += 1
            assert aborted == 20
            honest.goes_on()
        honest.close()
        wait_until(lambda: service.sessions == 0)
