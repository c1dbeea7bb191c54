"""The in-process cloud behind the edge's ``Link`` interface."""

from __future__ import annotations

import threading

import pytest

from acespec_edge import _core
from acespec_edge.errors import LinkError
from cloud_stub.local import LocalLink, connect
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.cloud.rig import hashed_logits, plain_greedy, tiny_vocabulary

LOGITS = hashed_logits(16)


def greeted() -> LocalLink:
    verifier = ScriptedVerifier(LOGITS, tiny_vocabulary())
    link = connect(verifier)
    hello = _core.Hello(tokenizer=verifier.vocabulary.fingerprint, vocabulary=16, drafter="bare")
    link.send(_core.encode(hello))
    answer = link.receive(5.0)
    assert answer is not None and isinstance(_core.decode(answer.data), _core.Welcome)
    return link


def test_a_request_and_the_bytes_it_took() -> None:
    link = greeted()
    sent = _core.encode(_core.Open(request=1, prompt=[1, 2], max_tokens=3, free_run=True))
    before = link.bytes_up, link.bytes_down
    link.send(sent)
    tokens, size, at = [], 0, 0.0
    while len(tokens) < 3:
        answer = link.receive(5.0)
        assert answer is not None and answer.at >= at
        tokens += _core.decode(answer.data).tokens
        size, at = size + len(answer.data), answer.at
    assert tokens == plain_greedy(LOGITS, [1, 2], 3)
    assert (link.bytes_up - before[0], link.bytes_down - before[1]) == (len(sent), size)
    assert link.receive(0) is None
    link.close()


def test_what_arrived_before_the_end_is_handed_out_first() -> None:
    link = greeted()
    link.send(b"garbage")
    answer = link.receive(5.0)
    assert answer is not None and _core.decode(answer.data).code == _core.FaultCode.protocol
    for _ in range(2):
        with pytest.raises(LinkError, match="closed"):
            link.receive(5.0)
    with pytest.raises(LinkError, match="closed"):
        link.send(b"more")
    link.close()


def test_close_is_idempotent_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    link = greeted()
    link.close()
    link.close()
    with pytest.raises(LinkError):
        link.receive(1.0)
    assert set(threading.enumerate()) <= before
