"""Requests that begin as an earlier one did: what is not read again, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from acespec_edge import _core
from acespec_edge.keyring import Key, digest
from acespec_edge.prefix import digest_of, text_of
from acespec_edge.prompt_codec import compress
from cloud_stub.verifiers.scripted import ScriptedHandle
from tests.cloud.rig import Client, Rig, expect_fault, hashed_logits, plain_greedy, scripted_rig

LOGITS = hashed_logits(16)
PROMPT = [(5 * place) % 16 for place in range(40)]
Finish, FaultCode = _core.Finish, _core.FaultCode


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every prefill, in order."""
    counts: list[int] = []
    prefill = ScriptedHandle.prefill

    def counted(handle: ScriptedHandle, tokens: Sequence[int]) -> Any:
        counts.append(len(tokens))
        return prefill(handle, tokens)

    monkeypatch.setattr(ScriptedHandle, "prefill", counted)
    return counts


def greet(rig: Rig, *, resume: bytes = b"", of: str | None = None) -> tuple[Client, bytes]:
    """A connection past its handshake, and its session's key."""
    client = Client(rig, None if of is None else Key(of, digest(of)))
    client.say(rig.hello(resume=resume))
    welcome = client.next()
    assert isinstance(welcome, _core.Welcome)
    return client, welcome.session


def write(client: Client, prompt: Sequence[int], count: int, *, request: int = 1, **fields: Any) -> int:
    """A whole request by plain steps, which is what plain decoding gives; returns what was reused."""
    verdict = client.open(prompt, max_tokens=count, request=request, **fields)
    assert isinstance(verdict, _core.Verdict), verdict
    for round in range(1, count):
        if verdict_of(client, round, request).finish != Finish.none:
            break
    assert client.committed == [*prompt, *plain_greedy(LOGITS, prompt, count)]
    return verdict.reused


def verdict_of(client: Client, round: int, request: int) -> Any:
    return client.draft(round, [], request=request)


def behind(prompt: Sequence[int], held: int, **fields: Any) -> _core.Open:
    """An Open that says of the prompt what comes after ``held`` tokens."""
    return _core.Open(
        prompt=list(prompt[held:]), held=held, held_digest=digest_of(text_of(prompt[:held])), **fields
    )


def test_turns_read_what_is_new(read: list[int]) -> None:
    rig = scripted_rig()
    client, _ = greet(rig)
    assert write(client, PROMPT, 6) == 0
    first = [*client.committed]
    assert write(client, [*first, 1, 2, 3], 5, request=2) == len(first) - 1
    second = [*client.committed]
    assert write(client, [*second[:50], 9], 5, request=3) == 50, "the third leaves the second early"
    assert read == [40, 4, 1]
    assert rig.service.counters.read()["reused_tokens"] == len(first) - 1 + 50


def test_n2_a_text_taken_back_and_written_anew_is_what_plain_decoding_writes(read: list[int]) -> None:
    client, _ = greet(scripted_rig())
    for number in range(1, 8):
        prompt = [*PROMPT[: 5 * number], number]
        write(client, prompt, 7, request=number)
    assert len(read) == 7 and max(read) == 6, "each goes on five tokens past where it left the last"


def test_e6_a_token_that_was_cut_away_is_not_part_of_the_next_turn() -> None:
    client, _ = greet(scripted_rig())
    client.open(PROMPT, max_tokens=20)
    right = plain_greedy(LOGITS, PROMPT, 5)
    client.draft(1, right[1:5])
    client.say(_core.Cancel(request=1))
    assert client.take().finish == Finish.cancelled
    kept = [*PROMPT, *right[:2]]
    assert write(client, [*kept, 3, 4], 6, request=2) == len(kept)


def test_e5_a_request_that_goes_on_behind_a_stop_equals_the_unbroken_one() -> None:
    rules = {"temperature": 1.0, "seed": 4}
    whole = scripted_rig().client()
    whole.open(PROMPT, max_tokens=12, rules=_core.SamplingRules(**rules), free_run=True)
    while whole.inbox:
        whole.take()
    output = whole.committed[len(PROMPT) :]
    stop = output[4]
    client, _ = greet(scripted_rig())
    rows = {"rules": _core.SamplingRules(**rules), "stop_ids": [stop]}
    client.open(PROMPT, max_tokens=12, **rows)
    written = output.index(stop) + 1
    client.draft(1, [*output[1:written], 0, 0])
    assert client.committed == [*PROMPT, *output[:written]]
    verdict = client.open(
        client.committed,
        max_tokens=12 - written,
        request=2,
        rules=_core.SamplingRules(**rules, carried=written),
        free_run=True,
    )
    assert verdict.reused == len(PROMPT) + written - 1
    while client.inbox:
        client.take()
    assert client.committed == [*PROMPT, *output]


def test_a_cancelled_prefill_leaves_what_it_has_read(read: list[int]) -> None:
    rig = scripted_rig(prefill_chunk=10)
    client, _ = greet(rig)
    client.say(_core.Open(request=1, prompt=PROMPT, max_tokens=5))
    rig.scheduler.step()
    rig.scheduler.step()
    client.say(_core.Cancel(request=1))
    client.next()
    assert write(client, PROMPT, 5, request=2) == 20
    assert read == [10, 10, 10, 10]


def test_a_request_that_is_cancelled_before_it_begins_spoils_nothing() -> None:
    rig = scripted_rig()
    client, _ = greet(rig)
    write(client, PROMPT, 4)
    client.say(_core.Open(request=2, prompt=[*PROMPT[:30], 1, 2, 3], max_tokens=5))
    client.say(_core.Cancel(request=2))
    client.next()
    assert write(client, [*PROMPT[:30], 1, 2, 3, 4], 5, request=3) == 30


def test_what_a_failed_request_held_is_not_used_again() -> None:
    client, _ = greet(scripted_rig())
    client.open(PROMPT, max_tokens=9)
    client.draft(1, [1], q=[5])
    assert write(client, PROMPT, 4, request=2) == 0


def test_held_tokens_need_not_be_sent() -> None:
    rig = scripted_rig()
    client, _ = greet(rig)
    write(client, PROMPT, 4)
    text = [*client.committed, 7, 8]
    client.committed = list(text)
    client.say(behind(text, 44, request=2, max_tokens=3))
    rig.scheduler.run()
    verdict = client.take()
    assert (verdict.base, verdict.reused) == (46, 43)
    assert verdict.tokens == plain_greedy(LOGITS, text, 1)


def test_a_compressed_rest_is_read() -> None:
    rig = scripted_rig()
    client, _ = greet(rig)
    write(client, PROMPT, 4)
    text = [*client.committed, *PROMPT * 5]
    frame = compress(text[44:])
    assert frame is not None
    client.committed = list(text)
    digest = digest_of(text_of(text[:44]))
    client.say(_core.Open(request=2, max_tokens=3, prompt_zstd=frame, held=44, held_digest=digest))
    rig.scheduler.run()
    assert client.take().tokens == plain_greedy(LOGITS, text, 1)


def test_a_frame_that_is_no_prompt_ends_the_session() -> None:
    client, _ = greet(scripted_rig())
    client.say(_core.Open(request=1, max_tokens=3, prompt_zstd=b"nothing of the kind"))
    expect_fault(client, FaultCode.protocol, "Open.prompt_zstd", ends=True)


def test_what_is_not_kept_is_said_to_be_gone_and_the_session_lives() -> None:
    rig = scripted_rig(max_context=100)
    client, _ = greet(rig)
    client.say(behind([*PROMPT, 1], 40, request=1, max_tokens=3))
    expect_fault(client, FaultCode.gone, "40 tokens", "send the whole prompt", ends=False)
    write(client, PROMPT, 4, request=2)
    other = [*PROMPT[:39], 15, 15]
    client.say(behind(other, 40, request=3, max_tokens=3))
    expect_fault(client, FaultCode.gone, ends=False)
    client.committed = [*PROMPT, *[0] * 60]
    client.say(behind(client.committed, 40, request=4, max_tokens=3))
    expect_fault(client, FaultCode.request, "Open.prompt has 100 tokens", ends=False)


def test_the_edge_hears_for_how_long_contexts_are_kept() -> None:
    for keep_kv, told in ((0.0, 0), (90.5, 90)):
        client = Client(rig := scripted_rig(keep_kv=keep_kv))
        client.say(rig.hello())
        assert client.next().keep_s == told


def test_a_new_request_may_push_out_what_is_kept() -> None:
    rig = scripted_rig(max_context=60, kv_tokens=60)
    client, _ = greet(rig)
    write(client, PROMPT, 4)
    stranger, _ = greet(rig)
    write(stranger, PROMPT, 5)
    assert rig.service.store.tokens == 45
    client.say(behind([*PROMPT, 1], 40, request=2, max_tokens=3))
    expect_fault(client, FaultCode.gone, ends=False)


def test_a_session_goes_on_behind_a_lost_connection(read: list[int]) -> None:
    rig = scripted_rig()
    first, key = greet(rig)
    first.open(PROMPT, max_tokens=9)
    first.connection.lost()
    second, again = greet(rig, resume=key)
    assert again == key
    text = first.committed
    second.committed = list(text)
    second.say(behind(text, len(text), request=1, max_tokens=8))
    rig.scheduler.run()
    assert second.take().reused == len(text) - 1
    assert read == [40, 1]


def test_an_edge_that_comes_back_displaces_the_connection_it_has_lost(read: list[int]) -> None:
    rig = scripted_rig()
    first, key = greet(rig)
    first.open(PROMPT, max_tokens=9)
    second, again = greet(rig, resume=key)
    assert again == key and first.hung_up is not None and "another connection" in first.hung_up
    assert write(second, [*PROMPT, 1], 4) == 40
    first.connection.lost()
    assert write(second, [*PROMPT, 1, 2], 4, request=2) == 41, "what is late of the first changes nothing"


def test_nobody_resumes_the_session_of_another() -> None:
    rig = scripted_rig()
    mine, key = greet(rig, of="me")
    write(mine, PROMPT, 4)
    thief, other = greet(rig, resume=key, of="somebody")
    assert other != key and mine.hung_up is None
    thief.say(behind([*PROMPT, 1], 40, request=1, max_tokens=3))
    expect_fault(thief, FaultCode.gone, ends=False)
    assert write(thief, PROMPT, 4, request=2) == 0
    _, guessed = greet(rig, resume=bytes(16), of="me")
    assert guessed not in (key, bytes(16)) and mine.hung_up is None


def test_a_key_of_which_nothing_is_left_starts_a_new_session() -> None:
    rig = scripted_rig()
    first, key = greet(rig)
    first.connection.lost()
    _, other = greet(rig, resume=key)
    assert other != key


def test_a_bound_of_time_is_kept_though_nobody_asks() -> None:
    rig = scripted_rig(keep_kv=60.0)
    client, _ = greet(rig)
    write(client, PROMPT, 4)
    client.connection.lost()
    store = rig.service.store
    assert store.tokens == 44
    store._clock = lambda: 1e9
    store.expire()
    assert store.tokens == 0
