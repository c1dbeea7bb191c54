"""The native drafter against the verifier service over WebSockets on this machine: connections that are
refused, broken, silent or closed."""

from __future__ import annotations

import contextlib
import functools
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import LinkError, UsageError
from acespec_edge.result import Piece
from cloud_stub.local import LocalLink
from tests.clock import LIMIT
from tests.integration.edge_cloud_kit import (
    CONTEXT,
    COUPLED,
    PROMPT,
    SLOWLY,
    make_service,
    native_drafter,
    plainly,
    served,
)
from tests.integration.relay import Relay
from tests.python.fake_bundle import make_bundle

pytestmark = pytest.mark.usefixtures("threads_end")


def test_another_tokenizer_is_refused_with_both_names(bundle: Bundle, tmp_path: Path) -> None:
    other = make_bundle(tmp_path / "other")
    text = (other.path / "tokenizer.json").read_text(encoding="utf-8").replace('"Z60"', '"Y60"')
    (other.path / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"fake-64[\s\S]*scripted"):
        EdgeRuntime(other, lambda: LocalLink(make_service(bundle)), drafter=native_drafter(), context=CONTEXT)


def test_over_websockets(bundle: Bundle) -> None:
    with served(bundle, verify_ms=2.0) as port:
        url = f"ws://127.0.0.1:{port}/v1/spec"
        with EdgeRuntime(bundle, url, drafter=native_drafter(), context=CONTEXT) as edge:
            for draft_length in range(3):
                pieces = list(stream := edge.stream(PROMPT, max_tokens=40))
                assert stream.result.token_ids == plainly(PROMPT, 40), draft_length
                assert "".join(piece.text for piece in pieces) == stream.result.text
            coupled = edge.generate(PROMPT, max_tokens=40, **COUPLED)
            assert coupled.token_ids == plainly(PROMPT, 40, _core.SamplingRules(**COUPLED))
            alone = edge.generate(PROMPT, max_tokens=20, mode="cloud")
            assert alone.token_ids == plainly(PROMPT, 20)
            assert 0.0 < alone.stats.rtt_ms < 500.0


async def test_async_over_websockets(bundle: Bundle) -> None:
    with served(bundle) as port:
        url = f"ws://127.0.0.1:{port}/v1/spec"
        with EdgeRuntime(bundle, url, drafter=native_drafter(), context=CONTEXT) as edge:
            stream = edge.astream(PROMPT, max_tokens=30)
            assert [token async for piece in stream for token in piece.token_ids] == plainly(PROMPT, 30)
            assert (await edge.agenerate(PROMPT, max_tokens=30)).token_ids == plainly(PROMPT, 30)


def drain(edge: EdgeRuntime, strike: Callable[[], None], after: int) -> LinkError:
    """Streams, strikes once ``after`` pieces came, and returns the error, its partial result checked."""
    pieces: list[Piece] = []
    with pytest.raises(LinkError) as caught:
        for piece in edge.stream(PROMPT, max_tokens=400):
            pieces.append(piece)
            if len(pieces) == after:
                strike()
    partial = caught.value.partial
    assert partial is not None
    assert partial.token_ids == [token for piece in pieces for token in piece.token_ids]
    assert partial.token_ids == plainly(PROMPT, len(partial.token_ids))
    assert partial.text == "".join(piece.text for piece in pieces)
    return caught.value


@pytest.mark.parametrize("after", [1, 2, 5])
def test_w1_a_broken_connection(bundle: Bundle, after: int) -> None:
    with served(bundle, verify_ms=SLOWLY) as port, contextlib.closing(Relay(port)) as relay:
        url = f"ws://127.0.0.1:{relay.port}/v1/spec"
        with EdgeRuntime(bundle, url, drafter=native_drafter(), context=CONTEXT, reconnect_for=0) as edge:
            began = time.monotonic()
            assert "lost the connection" in str(drain(edge, relay.cut, after))
            assert time.monotonic() - began < 5.0
            assert edge.generate(PROMPT, max_tokens=20).token_ids == plainly(PROMPT, 20)


def test_w2_a_black_hole(bundle: Bundle) -> None:
    with served(bundle, verify_ms=SLOWLY) as port, contextlib.closing(Relay(port)) as relay:
        url = f"ws://127.0.0.1:{relay.port}/v1/spec"
        with EdgeRuntime(bundle, url, drafter=native_drafter(), context=CONTEXT, reconnect_for=0) as edge:
            began = time.monotonic()
            drain(edge, relay.swallow, 3)
            assert time.monotonic() - began < LIMIT


def test_a_cloud_that_shuts_down_says_so(bundle: Bundle) -> None:
    service = make_service(bundle, verify_ms=SLOWLY)
    with EdgeRuntime(
        bundle, lambda: LocalLink(service), drafter=native_drafter(), context=CONTEXT, reconnect_for=0
    ) as edge:
        assert "shutting down" in str(drain(edge, functools.partial(service.close), 2))


def test_nobody_listens(bundle: Bundle) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(LinkError, match=f"cannot reach the cloud at 127.0.0.1:{port}"):
        EdgeRuntime(bundle, f"ws://127.0.0.1:{port}/v1/spec", mode="cloud")


def test_a_listener_that_never_answers(bundle: Bundle) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ws://127.0.0.1:{silent.getsockname()[1]}/v1/spec"
        began = time.monotonic()
        with pytest.raises(LinkError, match="cannot reach"):
            EdgeRuntime(bundle, url, mode="cloud", timeout=0.3)
        assert time.monotonic() - began < 5.0
