"""Messages that mean harm, without a socket: cut anywhere, mutated, beyond the limits of a tree."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec_edge import _core
from acespec_edge.protocol import parents_from_offsets
from tests.cloud.live import LOGITS, PROMPT
from tests.cloud.rig import Client, expect_fault, plain_greedy, scripted_rig

FaultCode = _core.FaultCode
WIRE = Path(__file__).parents[1] / "vectors" / "wire"
UPWARD = sorted(
    path.stem for path in WIRE.glob("*.hex") if path.stem.startswith(("hello", "open", "draft", "can", "clo"))
)
VICTIM = [7, 7, 7]


def golden(name: str) -> bytes:
    return bytes.fromhex((WIRE / f"{name}.hex").read_text())


def draft(*tokens: int, **fields: Any) -> _core.Draft:
    return _core.Draft(**({"request": 1, "round": 1, "base": 4, "tokens": list(tokens)} | fields))


@pytest.mark.parametrize("name", UPWARD)
def test_a_message_cut_anywhere_is_a_breach(name: str) -> None:
    rig = scripted_rig()
    whole = golden(name)
    for length in range(0, len(whole), 3):
        client = rig.client(greet=not name.startswith("hello"))
        client.connection.receive(whole[:length])
        # FlatBuffers pads: without its last bytes a message may still be whole.
        if client.inbox and isinstance(client.inbox[0], _core.Fault) and not client.inbox[0].request:
            assert client.hung_up is not None
        else:
            assert length >= len(whole) - 8
        client.connection.lost()
    assert rig.client().open(PROMPT).tokens == plain_greedy(LOGITS, PROMPT, 1)


def test_a_huge_tree_by_parts() -> None:
    """Each draft is small enough; what waits is not."""
    client = scripted_rig().client()
    client.open(PROMPT)
    wide = [0] * 4 + [4] * 124
    client.say(draft(*[1, 2, 3, 4] * 32, parent_offsets=wide))
    client.say(draft(*[5, 6, 7, 8] * 32, parent_offsets=wide, round=2, first_node=129))
    assert not client.inbox and client.hung_up is None
    client.say(draft(9, parent_offsets=[0], round=3, first_node=257))
    expect_fault(client, FaultCode.protocol, "257 nodes wait", "at most 256", ends=True)


def test_more_drafts_than_may_wait() -> None:
    client = scripted_rig().client()
    client.open(PROMPT)
    for number in range(1, 66):
        client.say(
            draft(number % 16, round=number, first_node=number, parent_offsets=[0 if number < 16 else 1])
        )
    assert client.hung_up is None
    client.say(draft(1, round=66, first_node=66, parent_offsets=[1]))
    expect_fault(client, FaultCode.protocol, "more than 64 drafts are waiting", ends=True)


@settings(max_examples=300, deadline=None)
@given(offsets=st.lists(st.integers(0, 255), max_size=40), first=st.integers(1, 300))
def test_a_tree_on_the_wire_has_no_cycles(offsets: list[int], first: int) -> None:
    """Whatever the offsets, a parent comes before its child, or the draft is refused."""
    with contextlib.suppress(ValueError):
        parents = parents_from_offsets(first, len(offsets), offsets)
        assert all(0 <= parent < node for node, parent in enumerate(parents, first))


def seeds() -> list[bytes]:
    """Valid messages: the golden ones, and some that fit the rig's small vocabulary."""
    small = [
        _core.Open(request=1, prompt=PROMPT, max_tokens=50),
        _core.Open(request=2, prompt=PROMPT, max_tokens=50, logprobs=3, free_run=True),
        draft(1, 2, 3),
        draft(1, 2, 3, 4, parent_offsets=[0, 1, 0, 1], round=2, first_node=4),
        draft(round=3, free_run=True),
        _core.Cancel(request=1),
    ]
    # A grammar compiles on a thread of its own, which a rig without threads does not wait for.
    return [*map(_core.encode, small), *(golden(name) for name in UPWARD if name != "open_grammar")]


SEEDS = seeds()


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(["byte", "bit", "word", "cut", "insert", "repeat"]))
        if kind == "byte" and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == "bit" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "word":
            data[at : at + 4] = draw(st.sampled_from([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])).to_bytes(
                4, "little"
            )
        elif kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = draw(st.binary(max_size=8))
        else:
            data += data[at:]
    return bytes(data)


@settings(max_examples=300, deadline=None)
@given(messages=st.lists(mutated(), min_size=1, max_size=8), greet=st.booleans())
def test_mutated_messages(messages: list[bytes], greet: bool) -> None:
    rig = scripted_rig(max_context=200)
    honest = rig.client()
    expected = plain_greedy(LOGITS, VICTIM, 12)
    assert honest.open(VICTIM).tokens == expected[:1]
    attacker = rig.client(greet=greet)
    for data in messages:
        attacker.connection.receive(data)
        for _ in range(3):
            if rig.scheduler.queue:
                rig.scheduler.step()
    rig.scheduler.run(100_000)
    if attacker.hung_up not in (None, "the edge closed the session"):
        assert isinstance(attacker.inbox[-1], _core.Fault)
    faults = [message for message in attacker.inbox if isinstance(message, _core.Fault)]
    assert all(fault.code != FaultCode.internal for fault in faults), faults
    assert honest.draft(1, expected[1:5]).tokens == expected[5:6]
    attacker.connection.lost()
    rig.scheduler.run()
    assert rig.service.sessions == 1 and rig.service.kv.reserved == 200
    assert honest.draft(2, expected[6:8]).tokens == expected[8:9]


def test_one_who_was_faulted_is_not_listened_to_any_more() -> None:
    rig = scripted_rig()
    client = Client(rig)
    client.connection.receive(b"nonsense")
    expect_fault(client, FaultCode.protocol, ends=True)
    for message in (rig.hello(), _core.Open(request=1, prompt=PROMPT, max_tokens=1)):
        client.say(message)
    rig.scheduler.run()
    assert not client.inbox
