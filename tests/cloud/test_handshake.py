"""The server's role from the first message to the first request, and its deadlines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from acespec_edge import _core
from cloud_stub.session import Session
from cloud_stub.target import Target
from cloud_stub.verifiers.base import Rows
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.cloud.rig import Rig, expect_fault, hashed_logits, plain_greedy, scripted_rig, tiny_vocabulary

Finish, FaultCode = _core.Finish, _core.FaultCode
PROMPT = [1, 2, 3]
LOGITS = hashed_logits(16)


def test_hello_is_answered_with_what_the_target_is() -> None:
    rig = scripted_rig(max_context=77, max_nodes=9)
    client = rig.client(greet=False)
    client.say(rig.hello())
    welcome = client.next()
    assert (welcome.vocabulary, welcome.max_context, welcome.max_nodes) == (16, 77, 9)
    assert welcome.target == "scripted" and len(welcome.session) == 16


def test_v1_padded_logits_are_the_same_tokenizer() -> None:
    def logits_of(tokens: Sequence[int]) -> Rows:
        row = np.full(24, 50.0, dtype=np.float32)
        row[:16] = LOGITS(tokens)
        return row

    rig = Rig(ScriptedVerifier(logits_of, tiny_vocabulary(), logits_width=24))
    client = rig.client()
    expected = plain_greedy(LOGITS, PROMPT, 3)
    assert client.open(PROMPT).tokens == expected[:1]
    assert client.draft(1, expected[1:2]).tokens == expected[2:3]
    client.say(_core.Draft(request=1, round=2, base=6, tokens=[16]))
    expect_fault(client, FaultCode.request, "Draft.tokens[0] is 16", "0 to 15", ends=False)


def test_v2_another_tokenizer_of_the_same_size_is_refused() -> None:
    rig = scripted_rig(16)
    client = rig.client(greet=False)
    other = tiny_vocabulary(16, swap=True)
    client.say(rig.hello(tokenizer=other.fingerprint, chunks=other.chunks))
    expect_fault(client, FaultCode.tokenizer, "tiny has 16", "scripted has 16", "ids 0 to 15", ends=True)


def test_v2_a_longer_tokenizer_is_refused_and_the_difference_found() -> None:
    rig = scripted_rig(16)
    client = rig.client(greet=False)
    other = tiny_vocabulary(20)
    client.say(rig.hello(tokenizer=other.fingerprint, vocabulary=20, chunks=rig.service.target.chunks))
    expect_fault(client, FaultCode.tokenizer, "tiny has 20", "ids from 16 on", ends=True)


def test_another_protocol_version_is_refused() -> None:
    rig = scripted_rig()
    client = rig.client(greet=False)
    client.say(rig.hello(version=_core.PROTOCOL_VERSION + 1))
    expect_fault(client, FaultCode.version, str(_core.PROTOCOL_VERSION + 1), ends=True)


@pytest.mark.parametrize(
    "message", [_core.Open(request=1, prompt=[1], max_tokens=1), _core.Cancel(request=1), _core.Welcome()]
)
def test_anything_but_hello_first_is_a_breach(message: object) -> None:
    client = scripted_rig().client(greet=False)
    client.say(message)
    expect_fault(client, FaultCode.protocol, type(message).__name__, "Hello", ends=True)


def test_a_second_hello_is_a_breach() -> None:
    rig = scripted_rig()
    client = rig.client()
    client.say(rig.hello())
    expect_fault(client, FaultCode.protocol, "Hello is out of place", ends=True)


def test_garbage_ends_the_session_and_only_it() -> None:
    rig = scripted_rig()
    bad, good = rig.client(), rig.client()
    bad.connection.receive(b"\x00\xff nonsense")
    expect_fault(bad, FaultCode.protocol, ends=True)
    assert good.open(PROMPT).tokens == plain_greedy(LOGITS, PROMPT, 1)


def test_one_session_too_many_is_told_when_to_come_back() -> None:
    rig = scripted_rig(max_sessions=1)
    first = rig.client()
    second = rig.client(greet=False)
    second.say(rig.hello())
    fault = second.next()
    assert fault.code == FaultCode.busy and fault.retry_after_ms > 0 and second.hung_up
    first.connection.lost()
    assert rig.client().hung_up is None


def test_deadlines_for_hello_and_for_silence() -> None:
    target = Target("t", 16, bytes(32), (), 100, handshake_timeout=10, idle_timeout=60)
    silent = Session(target, bytes(16), now=100.0)
    assert silent.expire(109.9) == [] and silent.deadline == 110.0
    fault, end = silent.expire(110.0)
    assert "no Hello within 10 s" in fault.message.message and end.reason
    session = Session(target, bytes(16), now=0.0)
    session.receive(_core.Hello(tokenizer=bytes(32), vocabulary=16), 5.0)
    assert session.deadline == 65.0 and session.expire(64.0) == []
    assert isinstance(session.expire(65.0)[0].message, _core.Close)
    assert session.receive(_core.Hello(), 66.0) == []
