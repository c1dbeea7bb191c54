"""Packets that are really lost, and an address that really changes: under TCP, not beside it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.resumption import LinkEvent
from acespec_edge.transport import connect
from cloud_stub.server import CloudServer, Listener
from tests.clock import LIMIT
from tests.integration.edge_cloud_kit import CONTEXT, PROMPT, make_service, native_drafter, plainly_by
from tests.integration.namespaces import CLOUD, EDGE, MOVED, LossyPath, Namespace, joined, unavailable

REASON = unavailable()
pytestmark = [
    pytest.mark.usefixtures("threads_end"),
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]

COUNT = 40


@contextlib.contextmanager
def served_in(namespace: Namespace, bundle: Bundle) -> Iterator[int]:
    """A server in the namespace; yields its port. Its token is never asked for: nobody else is there."""
    listening = namespace.inside(lambda: socket.create_server((CLOUD, 0)))
    ready = threading.Event()
    server = CloudServer(
        make_service(bundle, verify_ms=20.0), Listener(port=0), on_ready=lambda address: ready.set()
    )
    thread = threading.Thread(target=server.run, args=[[listening]], name="cloud", daemon=True)
    thread.start()
    try:
        assert ready.wait(LIMIT)
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(LIMIT)


@contextlib.contextmanager
def apart(
    bundle: Bundle, *, loss: float = 0.0
) -> Iterator[tuple[EdgeRuntime, Namespace, LossyPath, list[LinkEvent]]]:
    """A runtime in one namespace whose cloud is in another."""
    events: list[LinkEvent] = []
    with joined(loss=loss) as (edge_side, cloud_side, path), served_in(cloud_side, bundle) as port:
        url = f"ws://{CLOUD}:{port}/v1/spec"
        with EdgeRuntime(
            bundle,
            lambda: edge_side.inside(lambda: connect(url, least_bound=0.3, timeout=3.0)),
            drafter=native_drafter(),
            context=CONTEXT,
            draft_length=4,
            on_link=events.append,
        ) as edge:
            yield edge, edge_side, path, events


@pytest.mark.parametrize("loss", [0.02, 0.1])
def test_w2_lost_packets_change_nothing(bundle: Bundle, loss: float) -> None:
    with apart(bundle, loss=loss) as (edge, _, path, _):
        for _ in range(2):
            assert edge.generate(PROMPT, max_tokens=COUNT).token_ids == plainly_by({}, COUNT)
        while not path.lost:
            edge.generate(PROMPT, max_tokens=COUNT)


def test_w2_a_change_of_address_in_mid_answer(bundle: Bundle) -> None:
    """From one network to another: the old address is gone, nobody says good-bye for it."""
    with apart(bundle) as (edge, edge_side, _, events):
        read: list[int] = []
        moved = False
        for piece in (stream := edge.stream(PROMPT, max_tokens=COUNT)):
            read += piece.token_ids
            if not moved:
                moved = True
                edge_side.configure("addr", "del", f"{EDGE}/24", "dev", "acespec0")
                edge_side.configure("addr", "add", f"{MOVED}/24", "dev", "acespec0")
        assert read == stream.result.token_ids == plainly_by({}, COUNT)
        assert [event.kind for event in events] == ["lost", "back"]


def test_w2_an_outage_in_mid_answer(bundle: Bundle) -> None:
    with apart(bundle) as (edge, _, path, events):
        read: list[int] = []
        back: threading.Timer | None = None
        for piece in (stream := edge.stream(PROMPT, max_tokens=COUNT)):
            read += piece.token_ids
            if back is None:
                path.silent = True
                back = threading.Timer(1.5, lambda: setattr(path, "silent", False))
                back.start()
        assert back is not None
        back.join()
        assert read == stream.result.token_ids == plainly_by({}, COUNT)
        assert [event.kind for event in events] == ["lost", "back"]
