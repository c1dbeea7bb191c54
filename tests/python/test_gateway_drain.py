"""A gateway that is told to end: what runs may, what is new may not, and not for ever."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from acespec_edge.bundle import Bundle
from acespec_edge.gateway.listening import Listener
from acespec_edge.gateway.server import GatewayServer
from acespec_edge.gateway.service import Gateway
from tests.clock import LIMIT, wait_until
from tests.python.edge_kit import runtime
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import Choose
from tests.python.gateway_kit import Live, chat_bundle, serving, writes

pytestmark = pytest.mark.usefixtures("threads_end")

TARGET = writes("hello there, edge.")


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return chat_bundle(tmp_path / "bundle")


class Gate:
    """A model that stands still until it is let go."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()

    def __call__(self, choose: Choose) -> Choose:
        def wait(sequence: Any) -> int:
            self.reached.set()
            assert self.open.wait(LIMIT)
            return choose(sequence)

        return wait


class Asking:
    """A request on a thread of its own."""

    def __init__(self, live: Live, **fields: Any) -> None:
        self.answer: httpx.Response | None = None
        self._live = live
        self._fields = fields
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        # A connection of its own, apart from that of the other requests.
        with httpx.Client(base_url=self._live.url, timeout=LIMIT, trust_env=False) as client:
            body = {"messages": [{"role": "user", "content": "hi"}], **self._fields}
            self.answer = client.post("/chat/completions", json=body)

    def end(self) -> httpx.Response:
        self._thread.join(LIMIT)
        assert self.answer is not None
        return self.answer


def test_what_runs_ends_and_what_is_new_is_refused(bundle: Bundle) -> None:
    gate = Gate()
    target = gate(TARGET)
    with serving(runtime(bundle, target, TARGET, cloud=FakeCloud(target))) as live:
        assert live.http.get(f"http://127.0.0.1:{live.port}/healthz").json()["status"] == "ok"
        running = Asking(live, max_tokens=5)
        assert gate.reached.wait(LIMIT)
        live.server.drain()
        wait_until(lambda: live.gateway.draining)
        refused = live.chat()
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
        assert int(refused.headers["retry-after"]) > 0
        health = live.http.get(f"http://127.0.0.1:{live.port}/healthz")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        gate.open.set()
        answer = running.end()
        assert answer.json()["choices"][0]["message"]["content"] == "hello"
        wait_until(lambda: live.server.should_exit)


def test_what_does_not_end_in_time_is_told(bundle: Bundle) -> None:
    gate = Gate()
    target = gate(TARGET)
    with serving(runtime(bundle, target, TARGET, cloud=FakeCloud(target)), drain_seconds=0.0) as live:
        running = Asking(live, max_tokens=5)
        assert gate.reached.wait(LIMIT)
        live.server.drain()
        wait_until(lambda: live.server.should_exit)
        gate.open.set()
        error = running.end()
        assert error.status_code == 503 and error.json()["error"]["code"] == "shutting_down"


def test_signals_drain_first_and_end_at_once_when_repeated(bundle: Bundle) -> None:
    with runtime(bundle, TARGET, TARGET) as edge:
        gateway = Gateway(edge)

        def after(*numbers: signal.Signals) -> tuple[bool, bool]:
            server = GatewayServer(gateway, Listener(port=0))
            for number in numbers:
                server.handle_exit(number, None)
            return server.should_exit, server.force_exit

        assert after(signal.SIGTERM) == (False, False)
        assert after(signal.SIGTERM, signal.SIGTERM) == (True, False)
        assert after(signal.SIGTERM, signal.SIGINT) == (True, False)
        assert after(signal.SIGINT) == (True, False)
        assert after(signal.SIGINT, signal.SIGINT) == (True, True)
        assert not gateway.draining
