"""What one bearer token may take: sessions, nodes in a second, context; and for how long a session lasts."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import pytest
from websockets.exceptions import InvalidStatus

from acespec_edge import _core, transport
from acespec_edge.errors import LinkError
from acespec_edge.keyring import Key, Keyring, digest
from cloud_stub.clients import Client as Bearer
from cloud_stub.server import Listener
from cloud_stub.session import Session
from cloud_stub.target import Target
from tests.cloud.live import PROMPT, Edge, running
from tests.cloud.rig import Client, Rig, expect_fault, scripted_rig

FaultCode = _core.FaultCode


def key(secret: str = "t", **limits: int) -> Key:
    return Key(secret, digest(secret), limits)


def greeted(rig: Rig, bearer: Key | None) -> Client:
    edge = Client(rig, bearer)
    edge.say(rig.hello())
    return edge


def test_sessions_of_one_token() -> None:
    rig = scripted_rig()
    limited, other = key(sessions=2), key("other", sessions=1)
    first, second = greeted(rig, limited), greeted(rig, limited)
    assert first.next() and second.next()
    third = greeted(rig, limited)
    expect_fault(third, FaultCode.busy, "2 sessions of this token", ends=True)
    third.connection.lost()
    for bearer in (other, None, None, None):
        assert greeted(rig, bearer).hung_up is None, "it is nobody else's limit"
    first.connection.lost()
    first.connection.lost()
    assert greeted(rig, limited).hung_up is None
    expect_fault(greeted(rig, limited), FaultCode.busy, "2 sessions", ends=True)
    assert second.hung_up is None


def test_a_refused_session_leaves_no_trace() -> None:
    rig = scripted_rig(max_sessions=1)
    limited = key(sessions=1)
    holder = greeted(rig, None)
    for _ in range(3):
        greeted(rig, limited).connection.lost()
    holder.connection.lost()
    assert greeted(rig, limited).hung_up is None
    assert rig.service.counters.read()["refused_sessions"] == 3


@pytest.mark.parametrize(
    ("limits", "options"), [({"sessions": 1}, {}), ({}, {"max_sessions": 1})], ids=["token", "cloud"]
)
def test_an_edge_that_comes_back_takes_its_own_place(
    limits: Mapping[str, int], options: Mapping[str, int]
) -> None:
    """The connection that it has lost still counts as open: nobody has told the cloud."""
    rig = scripted_rig(**options)
    limited = key(**limits)
    lost = greeted(rig, limited)
    session = lost.next().session
    lost.open(PROMPT)
    for _ in range(3):
        back = Client(rig, limited)
        back.say(rig.hello(resume=session))
        assert back.next().session == session and back.hung_up is None
        assert lost.hung_up is not None
        lost.connection.lost()
        other = greeted(rig, limited)
        expect_fault(other, FaultCode.busy, "1 sessions", ends=True)
        other.connection.lost()
        lost = back
    assert rig.service.sessions == 1
    lost.connection.lost()
    assert greeted(rig, limited).hung_up is None


def test_context_of_one_token() -> None:
    rig = scripted_rig(max_context=100)
    limited, free = greeted(rig, key(context=10)), greeted(rig, key("other", context=1000))
    assert limited.next().max_context == 10 and free.next().max_context == 100
    fault = limited.open(range(10))
    assert fault.code == FaultCode.request and "holds 10 of prompt" in fault.message
    assert limited.open(PROMPT, request=2).tokens and rig.service.kv.reserved == 10
    assert free.open(PROMPT).tokens


def test_nodes_of_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rig = scripted_rig(max_nodes=8)
    limited = key(nodes_per_second=4)
    first, second = greeted(rig, limited), greeted(rig, limited)
    for edge in (first, second):
        assert isinstance(edge.next(), _core.Welcome) and edge.open(PROMPT).tokens
    assert first.draft(1, [0] * 5).tokens
    assert second.draft(1, []).tokens, "a plain step is one node"
    fault = second.draft(2, [0, 0, 0])
    assert (fault.code, fault.request, fault.retry_after_ms) == (FaultCode.busy, 1, 250)
    assert "0.2 s" in fault.message or "0.3 s" in fault.message
    assert second.hung_up is None, "the session lives"
    now[0] += 0.25
    assert second.open(PROMPT, request=2).tokens
    assert second.draft(1, [0, 0, 0], request=2).tokens
    fault = first.draft(2, [0])
    assert (fault.code, fault.retry_after_ms) == (FaultCode.busy, 250)


def test_a_draft_that_comes_twice_is_counted_once() -> None:
    spent: list[int] = []

    def spend(nodes: int, now: float) -> float:
        spent.append(nodes)
        return 0.0

    session = Session(Target("t", 16, bytes(32), (), 100), bytes(16), 0.0, spend=spend)
    session.receive(_core.Hello(tokenizer=bytes(32), vocabulary=16), 0.0)
    session.receive(_core.Open(request=1, prompt=PROMPT, max_tokens=9), 0.0)
    draft = _core.Draft(request=1, round=1, base=3, tokens=[1, 2])
    for message in (draft, draft, _core.Draft(request=7, round=2, base=3, tokens=[1])):
        session.receive(message, 0.0)
    assert spent == [2]


@pytest.mark.parametrize(
    ("limits", "most"), [({}, 64), ({"context": 10}, 10), ({"context": 100}, 64), ({"sessions": 1}, 64)]
)
def test_context_is_the_smaller_of_two(limits: Mapping[str, int], most: int) -> None:
    assert Bearer(limits, 8, 0.0).context(64) == most


def test_new_limits_are_for_new_sessions() -> None:
    rig = scripted_rig()
    assert greeted(rig, key(sessions=1)).hung_up is None
    assert greeted(rig, key(sessions=1)).hung_up is not None
    assert greeted(rig, key(sessions=2)).hung_up is None


def test_no_session_lasts_longer_than_its_time() -> None:
    target = Target("t", 16, bytes(32), (), 100, idle_timeout=60, session_timeout=100)
    session = Session(target, bytes(16), now=0.0)
    session.receive(_core.Hello(tokenizer=bytes(32), vocabulary=16), 5.0)
    assert session.deadline == 65.0
    session.receive(_core.Open(request=1, prompt=PROMPT, max_tokens=9), 50.0)
    assert session.deadline == 100.0 and session.expire(99.9) == []
    release, said, end = session.expire(100.0)
    assert release.ticket == 1, "also while the model is at work"
    assert "open for 100 s" in said.message.reason and end.reason == said.message.reason


def test_tokens_come_in_by_the_socket() -> None:
    keys = Keyring([key("s3cret", sessions=1), key("other", context=20)])
    with running(Listener(port=0, keys=keys)) as (service, address):
        for headers in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "Basic s3cret"}):
            with pytest.raises(InvalidStatus, match="401"):
                Edge(address, service, additional_headers=headers)
        shown = {"Authorization": "Bearer s3cret"}
        with (
            Edge(address, service, additional_headers=shown).greet(),
            Edge(address, service, additional_headers=shown) as second,
            Edge(address, service, additional_headers={"Authorization": "Bearer other"}).greet(),
        ):
            second.hello()
            fault = second.hear()
            assert fault.code == FaultCode.busy and fault.retry_after_ms > 0
            second.expect_end()


def test_no_log_of_either_side_shows_the_token(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(Listener(port=0, keys=Keyring.of("s3cret"))) as (_, address):
        for name in ("acespec.link", "uvicorn.error"):
            caplog.set_level(logging.DEBUG, name)
        monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
        transport.connect(address, token="s3cret").close()
        with pytest.raises(LinkError, match="401") as refused:
            transport.connect(address, token="s3cret2")
    said = caplog.text.lower()
    assert said.count("> authorization: [not shown]") == 2 and said.count("< authorization: [not shown]") == 2
    assert "s3cret" not in said and "s3cret" not in str(refused.value)
