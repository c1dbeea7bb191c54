"""A gateway on a free port of this machine, and a plain client."""

from __future__ import annotations

import contextlib
import json
import queue
import ssl
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.gateway.listening import Listener
from acespec_edge.gateway.server import GatewayServer
from acespec_edge.gateway.service import Gateway
from acespec_edge.keyring import Keyring
from acespec_edge.serving import DRAIN_SECONDS
from tests.clock import LIMIT
from tests.python.fake_bundle import ENTRIES, make_bundle
from tests.python.fakes import Choose

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@dataclass(frozen=True)
class Live:
    """A gateway that serves at ``url``."""

    gateway: Gateway
    server: GatewayServer
    url: str
    http: httpx.Client

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1].partition("/")[0])

    def chat(self, text: str = "hi", **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return self.http.post("/chat/completions", json=body)

    def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        return self.http.post("/completions", json={"prompt": prompt, **fields})


@contextlib.contextmanager
def serving(
    edge: EdgeRuntime,
    keys: Keyring | None = None,
    *,
    listener: Listener | None = None,
    verify: ssl.SSLContext | bool = True,
    drain_seconds: float = DRAIN_SECONDS,
    **options: Any,
) -> Iterator[Live]:
    """``verify``: of the client. ``options``: of Gateway. The runtime is closed at the end."""
    gateway = Gateway(edge, **options)
    ready: queue.Queue[str] = queue.Queue()
    server = GatewayServer(
        gateway, listener or Listener(port=0), keys, on_ready=ready.put, drain_seconds=drain_seconds
    )
    thread = threading.Thread(target=server.run, name="gateway", daemon=True)
    thread.start()
    url = ready.get(timeout=LIMIT)
    try:
        with httpx.Client(base_url=url, timeout=LIMIT, trust_env=False, verify=verify) as client:
            yield Live(gateway, server, url, client)
    finally:
        server.should_exit = True
        thread.join(LIMIT)
        assert not thread.is_alive(), "the gateway did not stop"


def chat_bundle(folder: Path, **options: Any) -> Bundle:
    return make_bundle(folder, chat_template=TEMPLATE, **options)


def writes(text: str, prompt: str = "hi", end: Sequence[int] = ()) -> Choose:
    """A model that answers ``prompt`` with ``text``, by single characters, and then ``end``."""
    script = [*(ENTRIES.index(letter) for letter in text), *end]
    start = len(prompt)
    return lambda sequence: script[len(sequence) - start] if len(sequence) - start < len(script) else 0


def events(answer: httpx.Response) -> list[Any]:
    """The events of a stream: their JSON, and "[DONE]" as it is."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    data = [block.removeprefix("data: ") for block in blocks]
    return [part if part == "[DONE]" else json.loads(part) for part in data]
