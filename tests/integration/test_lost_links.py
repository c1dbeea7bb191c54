"""The link is lost in mid-answer, anywhere and over and over: the text is that of the undisturbed run."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import LinkError
from acespec_edge.result import Result
from acespec_edge.resumption import LinkEvent
from acespec_edge.transport import Connector, Link, Received, connect
from acespec_edge.wan import wan_thread
from cloud_stub.local import LocalLink
from tests.clock import wait_until
from tests.integration.edge_cloud_kit import CONTEXT, PROMPT, make_service, native_drafter, plainly_by, served
from tests.integration.relay import Relay
from tests.python.fake_bundle import EOS, with_eos
from tools.bench.fault_path import Fault, FaultPath

pytestmark = pytest.mark.usefixtures("threads_end", "soon")

COUNT = 32


class Brittle:
    """A link that breaks with its ``messages``-th message, of both directions together: one on its way up is
    lost, and so is one on its way down."""

    def __init__(self, link: Link, messages: int) -> None:
        self._link = link
        self._left = messages
        self.bytes_up = self.bytes_down = 0

    def send(self, frame: bytes) -> None:
        self._pass()
        self._link.send(frame)

    def receive(self, timeout: float) -> Received | None:
        received = self._link.receive(timeout)
        if received is not None:
            self._pass()
        return received

    def close(self) -> None:
        self._left = 0
        self._link.close()

    def _pass(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.close()
            raise LinkError("the link broke")


def brittle(bundle: Bundle, *lives: int) -> Connector:
    """Links that last so many messages, one after the other and from the start again; 0: for ever."""
    opened = iter(range(1_000_000))

    def connector() -> Link:
        messages = lives[next(opened) % len(lives)]
        link = LocalLink(make_service(bundle, verify_ms=0.5))
        return Brittle(link, messages) if messages else link

    return connector


def disturbed(bundle: Bundle, connector: Connector, **options: Any) -> Result:
    mode = options.pop("runtime_mode", "auto")
    drafter = native_drafter(disagreement=0.2)
    with EdgeRuntime(bundle, connector, drafter=drafter, context=CONTEXT, draft_length=4, mode=mode) as edge:
        result = edge.generate(PROMPT, max_tokens=COUNT, **options)
        assert mode == "cloud" or drafter.check() == []
    return result


@pytest.mark.parametrize("mode", ["auto", "cloud"])
@pytest.mark.parametrize("messages", range(2, 14))
def test_w1_a_loss_at_every_message(bundle: Bundle, messages: int, mode: str) -> None:
    result = disturbed(bundle, brittle(bundle, messages, 0), runtime_mode=mode)
    assert result.token_ids == plainly_by({}, COUNT)
    assert result.origins == [("target", COUNT)]


SAMPLED = {"temperature": 1.0, "top_p": 0.95, "seed": 42}
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.7}


@pytest.mark.parametrize(
    "rules", [{}, SAMPLED, PENALTIES, PENALTIES | SAMPLED], ids=["greedy", "sampled", "penal", "both"]
)
@pytest.mark.parametrize("lives", [(4,), (5, 9), (6, 7, 8)])
def test_w1_losses_over_and_over_under_every_rule(
    bundle: Bundle, lives: tuple[int, ...], rules: dict[str, Any]
) -> None:
    result = disturbed(bundle, brittle(bundle, *lives), **rules)
    assert result.token_ids == plainly_by(rules, COUNT)
    assert result.stats.outages >= 2


@pytest.mark.parametrize("lives", [(5,), (6, 8)])
def test_w1_residual_mode_goes_on(bundle: Bundle, lives: tuple[int, ...]) -> None:
    """With temperature 0 p is all on one token: the text is known. With more, it has all its tokens."""
    result = disturbed(bundle, brittle(bundle, *lives), sampling="residual")
    assert result.token_ids == plainly_by({}, COUNT)
    warm = disturbed(bundle, brittle(bundle, *lives), sampling="residual", logprobs=1, **SAMPLED)
    assert warm.logprobs is not None
    assert len(warm.token_ids) == len(warm.logprobs) == COUNT
    assert [entry.token for entry in warm.logprobs] == warm.token_ids


@pytest.mark.parametrize("lives", [(4,), (5, 7)])
def test_w1_log_probabilities_are_those_of_the_undisturbed_run(
    bundle: Bundle, lives: tuple[int, ...]
) -> None:
    whole = disturbed(bundle, brittle(bundle, 0), logprobs=3, **SAMPLED)
    result = disturbed(bundle, brittle(bundle, *lives), logprobs=3, **SAMPLED)
    assert result.token_ids == whole.token_ids == plainly_by(SAMPLED, COUNT)
    assert result.logprobs == whole.logprobs


@pytest.mark.parametrize("lives", [(4,), (5, 7)])
@pytest.mark.parametrize("rules", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_w1_a_grammar_stands_where_the_text_stands(
    bundle: Bundle, lives: tuple[int, ...], rules: dict[str, Any]
) -> None:
    with_end = with_eos(bundle, EOS)
    asked: dict[str, Any] = {"regex": "([a-z]{3}[0-9]{2} ){4}", **rules}
    whole = disturbed(with_end, brittle(with_end, 0), **asked)
    result = disturbed(with_end, brittle(with_end, *lives), **asked)
    assert (result.text, result.token_ids) == (whole.text, whole.token_ids)
    assert result.finish_reason == "stop"
    assert result.stats.outages > 0


@pytest.mark.parametrize("messages", range(4, 12))
def test_w1_a_stop_string_across_the_loss(bundle: Bundle, messages: int) -> None:
    whole = disturbed(bundle, brittle(bundle, 0))
    stop = whole.text[5:9]
    expected = whole.text[: whole.text.index(stop)]
    result = disturbed(bundle, brittle(bundle, messages, 0), stop=stop)
    assert (result.text, result.finish_reason) == (expected, "stop")


@pytest.mark.parametrize("lives", [(4,), (5, 7)])
def test_w1_what_the_drafter_wrote_alone_keeps_to_the_rules(bundle: Bundle, lives: tuple[int, ...]) -> None:
    """The drafter is the target's twin: alone, by the same rules and noise, it writes the same."""
    for rules in ({}, SAMPLED, PENALTIES | SAMPLED):
        away = brittle(bundle, *lives)
        turn = iter(range(1_000_000))

        def connector(away: Connector = away, turn: Iterator[int] = turn) -> Link:
            if next(turn) % 3:
                raise LinkError("cannot reach the cloud")
            return away()

        twin = native_drafter(disagreement=0.0)
        with EdgeRuntime(bundle, connector, drafter=twin, context=CONTEXT, offline_after=0.0) as edge:
            result = edge.generate(PROMPT, max_tokens=COUNT, **rules)
        assert result.token_ids == plainly_by(rules, COUNT)
        assert "edge" in [origin for origin, _ in result.origins]


# Over sockets.


@contextlib.contextmanager
def far(
    bundle: Bundle, connector: Connector, **options: Any
) -> Iterator[tuple[EdgeRuntime, list[LinkEvent]]]:
    events: list[LinkEvent] = []
    with EdgeRuntime(
        bundle,
        connector,
        drafter=native_drafter(),
        context=CONTEXT,
        on_link=events.append,
        draft_length=4,
        **options,
    ) as edge:
        yield edge, events


def hasty(port: int) -> Connector:
    """A tenth of a second of silence after a ping will do."""
    return lambda: connect(f"ws://127.0.0.1:{port}/v1/spec", least_bound=0.1)


@pytest.mark.parametrize("after", [1, 3])
def test_w2_a_black_hole_is_left_for_a_new_connection(bundle: Bundle, after: int) -> None:
    """No FIN, no RST: only the missing answers to pings tell. The next connection comes from another port, as
    after a change of networks."""
    with served(bundle, verify_ms=20.0) as port, contextlib.closing(Relay(port)) as relay:
        with far(bundle, hasty(relay.port)) as (edge, events):
            read: list[int] = []
            for number, piece in enumerate(stream := edge.stream(PROMPT, max_tokens=COUNT), 1):
                read += piece.token_ids
                if number == after:
                    relay.swallow()
            assert read == stream.result.token_ids == plainly_by({}, COUNT)
        assert [event.kind for event in events] == ["lost", "back"]
        assert "no sign of life" in events[0].reason


def test_w1_a_server_restarts_in_mid_answer(bundle: Bundle) -> None:
    """Another server on another port behind the same address."""
    ports: list[int] = []
    with contextlib.ExitStack() as first, served(bundle, verify_ms=20.0) as second:
        ports += [second, first.enter_context(served(bundle, verify_ms=20.0))]
        with far(bundle, lambda: connect(f"ws://127.0.0.1:{ports[-1]}/v1/spec")) as (edge, events):
            read: list[int] = []
            stopper: threading.Thread | None = None
            for piece in (stream := edge.stream(PROMPT, max_tokens=COUNT)):
                read += piece.token_ids
                if stopper is None:
                    ports.pop()
                    stopper = threading.Thread(target=first.close)
                    stopper.start()
            assert stopper is not None
            stopper.join()
            assert read == stream.result.token_ids == plainly_by({}, COUNT)
        assert [event.kind for event in events] == ["lost", "back"]


@pytest.mark.parametrize("kind", ["", ":cut"], ids=["silent", "cut"])
def test_w2_an_outage_of_the_emulated_network(bundle: Bundle, kind: str) -> None:
    """Thirty seconds, a twentieth of the scale: bounds and waits are that much shorter, too."""
    with (
        served(bundle, verify_ms=20.0) as port,
        wan_thread(f"127.0.0.1:{port}", rtt="20ms", outages=f"700ms:1500ms{kind}") as near,
        far(bundle, hasty(int(near.rpartition(":")[2]))) as (edge, events),
    ):
        tokens: list[int] = []
        while "lost" not in [event.kind for event in events]:
            result = edge.generate(PROMPT, max_tokens=COUNT)
            assert result.token_ids == plainly_by({}, COUNT)
            tokens += result.token_ids
        assert "back" in [event.kind for event in events]


def test_a_model_at_work_is_no_dead_link(bundle: Bundle) -> None:
    """The server answers pings while a forward takes five times the bound."""
    with served(bundle, verify_ms=500.0) as port, far(bundle, hasty(port)) as (edge, events):
        assert edge.generate(PROMPT, max_tokens=3).token_ids == plainly_by({}, 3)
        assert events == []


def test_many_edges_come_back_after_a_restart(bundle: Bundle) -> None:
    """A storm of reconnections, and every text is whole."""
    with served(bundle, verify_ms=5.0) as port, contextlib.closing(Relay(port)) as relay:
        results: list[list[int]] = []
        begun = threading.Barrier(7)

        def one() -> None:
            with far(bundle, hasty(relay.port)) as (edge, _):
                stream = edge.stream(PROMPT, max_tokens=COUNT)
                first = next(stream).token_ids
                begun.wait(20.0)
                results.append(first + [token for piece in stream for token in piece.token_ids])

        threads = [threading.Thread(target=one) for _ in range(6)]
        for thread in threads:
            thread.start()
        begun.wait(20.0)
        relay.cut()
        for thread in threads:
            thread.join()
    assert results == [plainly_by({}, COUNT)] * 6


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
def test_losses_leave_no_descriptor_open(bundle: Bundle) -> None:
    with served(bundle, verify_ms=2.0) as port:

        def disturbed_often() -> int:
            with (
                FaultPath(port, [Fault("reset", 1500)] * 8) as path,
                far(bundle, hasty(path.port)) as (edge, _),
            ):
                for _ in range(3):
                    assert edge.generate(PROMPT, max_tokens=COUNT).token_ids == plainly_by({}, COUNT)
            return len(os.listdir("/proc/self/fd"))

        open_before = disturbed_often()
        disturbed_often()
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= open_before)
