"""Conversations: what both sides still have is neither sent nor read again, and the text stays the target's
own, through lost links and a cloud that has forgotten.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import LinkError
from acespec_edge.result import Result
from acespec_edge.transport import connect
from cloud_stub.server import CloudServer, Listener
from cloud_stub.service import Service
from tests.integration.edge_cloud_kit import CONTEXT, make_service, native_drafter, plainly
from tests.integration.relay import Relay

pytestmark = pytest.mark.usefixtures("threads_end")

PROMPT = [(7 * place) % 60 for place in range(100)]


@contextlib.contextmanager
def cloud(bundle: Bundle, **options: Any) -> Iterator[tuple[Service, int]]:
    """A real server and its port."""
    service, ready = make_service(bundle, **options), threading.Event()
    server = CloudServer(service, Listener(port=0), on_ready=lambda address: ready.set())
    thread = threading.Thread(target=server.run, name="cloud", daemon=True)
    thread.start()
    try:
        assert ready.wait(10.0)
        yield service, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10.0)


def address(port: int) -> str:
    return f"ws://127.0.0.1:{port}/v1/spec"


@contextlib.contextmanager
def device(bundle: Bundle, port: int, **options: Any) -> Iterator[EdgeRuntime]:
    with EdgeRuntime(bundle, address(port), drafter=native_drafter(), context=CONTEXT, **options) as edge:
        yield edge


def right(edge: EdgeRuntime, prompt: list[int], count: int, **options: Any) -> Result:
    result = edge.generate(prompt, max_tokens=count, **options)
    assert result.token_ids == plainly(prompt, count)
    return result


@pytest.mark.parametrize("mode", ["auto", "cloud"])
@pytest.mark.parametrize("length", [0, 5])
def test_turn_after_turn(bundle: Bundle, mode: str, length: int) -> None:
    with cloud(bundle) as (_, port), device(bundle, port, mode=mode, draft_length=length) as edge:
        text = list(PROMPT)
        first = right(edge, text, 10)
        assert first.stats.cloud_reused_tokens == first.usage.cached_tokens == 0
        for turn in range(1, 6):
            text += [*plainly(text, 10), 3, turn]
            result = right(edge, text, 10)
            assert result.stats.cloud_reused_tokens == result.usage.cached_tokens == len(text) - 3
            assert result.usage.to_dict()["prompt_tokens_details"] == {"cached_tokens": len(text) - 3}
            if mode == "auto":
                # What the last verdict brought was not read here any more.
                assert len(text) - 3 - 10 <= result.stats.reused_tokens <= len(text) - 2


def test_the_cost_of_a_turn_does_not_follow_the_history(bundle: Bundle) -> None:
    with cloud(bundle) as (service, port), device(bundle, port, mode="cloud") as edge:
        text, sizes, reads = list(PROMPT), [], []
        for turn in range(8):
            before = service.counters.read()
            result = right(edge, text, 4)
            after = service.counters.read()
            reads.append(len(text) - (after["reused_tokens"] - before["reused_tokens"]))
            sizes.append(result.stats.bytes_up)
            text += [*result.token_ids, 1, 2, turn]
        assert reads == [100] + 7 * [4], (
            "what is new, and the last token of the answer, which nobody had read"
        )
        assert len(set(sizes[1:])) == 1 and sizes[1] < 150


def test_two_conversations_of_one_session_do_not_cost_each_other_anything(bundle: Bundle) -> None:
    with cloud(bundle) as (_, port), device(bundle, port) as edge:
        texts = [[*PROMPT[:30], *(kind + place % 7 for place in range(70))] for kind in (10, 40)]
        for turn in range(3):
            for text in texts:
                result = right(edge, text, 6)
                if turn:
                    assert result.stats.cloud_reused_tokens == len(text) - 2
                text += [*result.token_ids, turn]


def test_n_choices_read_the_prompt_once(bundle: Bundle) -> None:
    with cloud(bundle) as (_, port), device(bundle, port) as edge:
        results = edge.generate_many(PROMPT, n=3, max_tokens=6, temperature=1.0, seed=3)
        assert [result.stats.cloud_reused_tokens for result in results] == [0, 99, 99]
        alone = edge.generate(PROMPT, max_tokens=6, temperature=1.0, seed=4)
        assert alone.token_ids == results[1].token_ids


def lost(edge: EdgeRuntime, prompt: list[int], after: int, lose: Callable[[], None]) -> list[int]:
    """Loses the link when ``after`` tokens of an answer have come; returns these."""
    ids: list[int] = []
    with pytest.raises(LinkError) as caught:
        for piece in edge.stream(prompt, max_tokens=150):
            ids += piece.token_ids
            if len(ids) >= after:
                lose()
    partial = caught.value.partial
    assert partial is not None
    return list(partial.token_ids)


def test_w1_an_answer_that_was_cut_off_goes_on_where_it_was(bundle: Bundle) -> None:
    with (
        cloud(bundle, verify_ms=5.0) as (_, port),
        contextlib.closing(Relay(port)) as relay,
        device(bundle, relay.port, reconnect_for=0.0) as edge,
    ):
        got = lost(edge, PROMPT, 8, relay.cut)
        result = edge.generate(PROMPT, max_tokens=20, continue_from=got)
        assert got + result.token_ids == plainly(PROMPT, len(got) + 20)
        assert result.stats.cloud_reused_tokens == 100 + len(got) - 1


def test_w1_an_answer_that_survives_a_cut_costs_no_prompt_again(bundle: Bundle) -> None:
    with (
        cloud(bundle, verify_ms=5.0) as (service, port),
        contextlib.closing(Relay(port)) as relay,
        device(bundle, relay.port) as edge,
    ):
        ids: list[int] = []
        stream = edge.stream(PROMPT, max_tokens=40)
        for piece in stream:
            if not ids:
                relay.cut()
            ids += piece.token_ids
        assert ids == plainly(PROMPT, 40) and stream.result.stats.reconnects == 1
        assert service.counters.read()["reused_tokens"] >= 100
        assert stream.result.usage.cached_tokens == 0, "of this prompt nothing was kept before"


def test_w2_behind_a_black_hole_the_edge_takes_its_place_back(bundle: Bundle) -> None:
    with cloud(bundle, verify_ms=5.0) as (_, port), contextlib.closing(Relay(port)) as relay:
        ports = iter([relay.port, port])
        with EdgeRuntime(
            bundle,
            lambda: connect(address(next(ports))),
            drafter=native_drafter(),
            context=CONTEXT,
            timeout=1.0,
            reconnect_for=0.0,
        ) as edge:
            got = lost(edge, PROMPT, 8, relay.swallow)
            result = edge.generate(PROMPT, max_tokens=20, continue_from=got)
            assert got + result.token_ids == plainly(PROMPT, len(got) + 20)
            assert result.stats.cloud_reused_tokens == 100 + len(got) - 1
            relay.cut()


@pytest.mark.parametrize("mode", ["auto", "cloud"])
def test_a_cloud_that_has_forgotten_gets_the_whole_prompt_unseen(bundle: Bundle, mode: str) -> None:
    with cloud(bundle) as (service, port), device(bundle, port, mode=mode) as edge:
        text = [*PROMPT, *right(edge, PROMPT, 6).token_ids, 1]
        clock, service.store._clock = service.store._clock, lambda: 1e9
        service.store.expire()
        service.store._clock = clock
        result = right(edge, text, 6)
        assert result.stats.cloud_reused_tokens == 0
        assert service.counters.read()["faults"] == 1
        assert right(edge, [*text, *result.token_ids, 2], 6).stats.cloud_reused_tokens == len(text) + 5
