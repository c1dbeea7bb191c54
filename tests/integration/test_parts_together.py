"""Everything that may happen to a conversation at once: links that break, with and without the cloud's
knowing; texts that are kept, and dropped when they are needed; a token's limits; a cloud that drafts for
itself; every drafter, policy and rule. The text is the target's."""

from __future__ import annotations

import queue
import random
import time
from typing import Any

import pytest

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.drafting import lookup_drafter
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import LinkError
from acespec_edge.keyring import Key, digest
from acespec_edge.policy import POLICIES
from acespec_edge.transport import Received
from cloud_stub.continuation import SelfDrafting
from cloud_stub.service import Service
from cloud_stub.verifiers.scripted import ScriptedHandle
from tests.integration.edge_cloud_kit import CONTEXT, PROMPT, SEED, TARGET, make_service, plainly_by

pytestmark = pytest.mark.usefixtures("threads_end", "soon")

TURNS, COUNT = 3, 24
_UNNOTICED = 0.2
RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "top_p": 0.95, "seed": 42},
    {"temperature": 0.8, "seed": 7, "repetition_penalty": 1.3, "presence_penalty": 0.5},
]
MORE: list[dict[str, Any]] = [{}, {"logprobs": 2}, {"sampling": "residual"}]
KINDS = ["model", "lookup", "both", "twin"]


class Guesses:
    """Proposes what the target says, three times in four."""

    longest = 5

    def __init__(self) -> None:
        self._sampler = _core.Sampler(64)
        self._random = random.Random(4)

    def propose(
        self, handle: Any, tip: int, position: int, rules: _core.SamplingRules, count: int, least: float
    ) -> list[int]:
        assert isinstance(handle, ScriptedHandle)
        text, tokens = [*handle._committed, tip], list[int]()
        for place in range(count):
            token = self._sampler.choose(TARGET.logits([*text, *tokens]), rules, position + place)
            tokens.append(token if self._random.random() < 0.75 else (token + 1) % 64)
        return tokens


class World:
    """A connector to one cloud, whose every choice is drawn from ``seed``. The cloud notices after a while
    that a link is dead of which it was not told: nobody takes the place of one whose Welcome was lost.
    """

    def __init__(self, service: Service, seed: int, nodes_per_second: int = 120) -> None:
        self.service = service
        self.random = random.Random(seed)
        self.opened = 0
        self.lives = [1, 2, 3, 5, 8, 13, 40, 200]
        self.links: list[Mortal] = []
        self.heard: set[_core.FaultCode] = set()
        self.key = Key("t", digest("t"), {"sessions": 1, "nodes_per_second": nodes_per_second})

    def __call__(self) -> Mortal:
        self.notice()
        self.opened += 1
        self.links.append(Mortal(self))
        return self.links[-1]

    def notice(self) -> None:
        for link in self.links:
            link.notice(time.monotonic() - _UNNOTICED)

    def forget(self) -> None:
        store = self.service.store
        with store._lock:
            for kept in list(store._kept):
                store._drop(kept)


class Mortal:
    """A link of a few messages. Of the end of every other one the cloud hears nothing."""

    def __init__(self, world: World) -> None:
        self._world = world
        # A runtime that cannot connect when it is made says so.
        self._left = world.random.choice(world.lives) + (world.opened == 1)
        self._is_told = world.random.random() < 0.5
        self._inbox: queue.SimpleQueue[Received | str] = queue.SimpleQueue()
        self._died: float | None = None
        self.bytes_up = self.bytes_down = 0
        self._connection = world.service.connect(self._deliver, self._inbox.put, world.key)

    def send(self, frame: bytes) -> None:
        self._pass()
        self.bytes_up += len(frame)
        if frame[4:8] == b"ACOP" and self._world.random.random() < 0.3:
            self._world.forget()
        self._connection.receive(frame)

    def receive(self, timeout: float) -> Received | None:
        if self._died is not None:
            raise LinkError("the link broke")
        try:
            item = self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, str):
            raise LinkError(f"the cloud hung up: {item}")
        self._pass()
        message = _core.decode(item.data)
        if isinstance(message, _core.Fault):
            self._world.heard.add(message.code)
        return item

    def close(self) -> None:
        self._died = self._died or time.monotonic()
        if self._is_told:
            self._connection.lost()

    def notice(self, before: float) -> None:
        if self._died is not None and self._died <= before:
            self._connection.lost()

    def _pass(self) -> None:
        self._left -= 1
        if self._left < 0 or self._died is not None:
            self.close()
            raise LinkError("the link broke")

    def _deliver(self, data: bytes) -> None:
        self._inbox.put(Received(data, time.monotonic()))


def drafter_of(kind: str) -> _core.Drafter:
    if kind == "lookup":
        return lookup_drafter(64, context=CONTEXT)  # type: ignore[return-value]
    # What goes on alone has to be the target's twin: else its text would be another.
    wrong = 0.0 if kind == "twin" else 0.2
    engine = _core.FakeEngine(vocabulary=64, slots=CONTEXT + 256, seed=SEED, disagreement=wrong, max_rows=16)
    looked_up = 8 if kind in ("both", "twin") else 0
    return _core.Drafter(engine, _core.DrafterOptions(context=CONTEXT, max_nodes=64, lookup=looked_up))


@pytest.mark.parametrize("seed", range(32))
def test_w1_a_conversation_through_all_of_it(bundle: Bundle, seed: int) -> None:
    source = random.Random(seed)
    policy, rules, kind = source.choice(list(POLICIES)), source.choice(RULES), KINDS[seed % len(KINDS)]
    mode: Any = source.choice(["auto", "auto", "auto", "cloud"])
    more = source.choice(MORE)
    if "sampling" in more and (kind == "lookup" or rules):
        # Lookup has no distribution to draw from, and what is drawn is known at temperature 0 alone.
        more = {}
    service = make_service(bundle, verify_ms=0.5, max_nodes=16, retry_after=0.1)
    service.self_drafting = SelfDrafting(Guesses(), 8.0) if source.random() < 0.7 else None
    world = World(service, seed)
    drafter = drafter_of(kind)
    try:
        with EdgeRuntime(
            bundle,
            world,
            drafter=drafter,
            context=CONTEXT,
            policy=policy,
            mode=mode,
            power=source.choice(["full", "save"]),
            offline_after=0.0 if kind == "twin" else None,
        ) as edge:
            prompt = PROMPT * 4
            for _ in range(TURNS):
                expected = plainly_by(rules, COUNT, prompt=prompt)
                result = edge.generate(prompt, max_tokens=COUNT, **rules, **more)
                assert result.token_ids == expected
                assert kind == "twin" or result.origins == [("target", COUNT)]
                if result.logprobs is not None:
                    assert [entry.token for entry in result.logprobs] == expected
                prompt = [*prompt, *expected, *PROMPT[:5]]
            if mode != "cloud":
                assert drafter.check() == []
    finally:
        service.close()
    assert service.kv.reserved == 0


@pytest.mark.parametrize("rules", RULES, ids=["greedy", "sampled", "penal"])
def test_a_token_whose_nodes_are_limited_gets_its_whole_text(bundle: Bundle, rules: dict[str, Any]) -> None:
    """It waits as long as it is told to, on the connection that it has."""
    service = make_service(bundle, max_nodes=16)
    world = World(service, 0, nodes_per_second=40)
    world.lives = [10**6]
    try:
        with EdgeRuntime(bundle, world, drafter=drafter_of("model"), context=CONTEXT, draft_length=4) as edge:
            result = edge.generate(PROMPT, max_tokens=2 * COUNT, **rules)
    finally:
        service.close()
    assert result.token_ids == plainly_by(rules, 2 * COUNT)
    assert _core.FaultCode.busy in world.heard and world.opened == 1
