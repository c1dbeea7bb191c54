"""One output, split in every way: chains, trees, deltas below what is in flight, free runs, stops, cancels,
lost connections and requests that go on, over a wire that delays both directions. Whatever happens, what is
committed is what the target alone writes, both sides hold one tree, and the edge knows whether an answer is
to come.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from acespec_edge import _core
from acespec_edge.session_state import State
from cloud_stub.request import Request
from tests.cloud.machine_kit import CONTEXT, MANY, MAX_NODES, MOSTLY, SELDOM, TOKENS, Requests
from tests.cloud.test_pair import Pair
from tests.python.session_kit import unanswered, waits


class Edges(Requests):
    """An edge's session and the cloud's, joined by two queues."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(self.rig)
        self.up: deque[bytes] = deque()
        self.texts: dict[int, list[int]] = {}

    @property
    def running(self) -> bool:
        return self.pair.edge.state in (State.RUNNING, State.CANCELLING)

    @property
    def committed(self) -> list[int]:
        return self.pair.committed

    def start(self, prompt: list[int], free_run: bool, **rules: Any) -> None:
        assert self.alone is not None
        self.texts.clear()
        self.pair.committed, self.pair.finish = list(prompt), _core.Finish.none
        self.up.append(
            self.pair.edge.open(
                prompt,
                _core.SamplingRules(**self.rules, **rules),
                stop_ids=self.alone.stop_ids,
                max_tokens=self.alone.max_tokens,
                at=self.pair.now,
                free_run=free_run,
            )
        )

    @precondition(lambda self: self.pair.down)
    @rule(most=st.integers(1, 3))
    def deliver(self, most: int) -> None:
        for event in self.pair.deliver(most):
            assert event.accepted <= event.nodes
            assert event.answered == (event.round_trip is not None) == (event.bytes_up > 0)

    @precondition(lambda self: self.up)
    @rule(most=st.integers(1, 3))
    def arrive(self, most: int) -> None:
        for _ in range(min(most, len(self.up))):
            self.pair.up(self.up.popleft())

    def hear(self) -> None:
        self.deliver(1000)

    @precondition(lambda self: self.pair.edge.state is State.RUNNING and self.pair.edge.held <= MAX_NODES - 6)
    @rule(
        nodes=st.lists(st.tuples(st.integers(-1, 30), MOSTLY, TOKENS), max_size=6),
        is_chain=st.booleans(),
        free_run=SELDOM,
    )
    def draft(self, nodes: list[tuple[int, bool, int]], is_chain: bool, free_run: bool) -> None:
        """``nodes``: which of the nodes that are open it hangs below (-1: the last one, 0: the root), whether
        the target would choose its token, and a token to take otherwise.
        """
        edge, length = self.pair.edge, len(self.committed)
        first = edge.next_node
        tokens: list[int] = []
        parents: list[int] = []
        for number, (place, wanted, other) in enumerate(nodes, first):
            is_open = [n for n, t in self.texts.items() if t[:length] == self.committed and len(t) > length]
            parent = [0, *is_open][place % (1 + len(is_open)) if place >= 0 else -1]
            if is_chain:
                parent = number - 1 if number > first else 0
            above = self.texts[parent] if parent else self.committed
            right = self.next_of(above)
            token = right if wanted and right is not None else other
            self.texts[number] = [*above, token]
            tokens.append(token)
            parents.append(parent)
        self.up.append(edge.draft(tokens, None if is_chain else parents, at=self.pair.now, free_run=free_run))

    @precondition(lambda self: self.pair.edge.state is State.RUNNING)
    @rule(really=SELDOM)
    def cancel(self, really: bool) -> None:
        if really:
            self.up.append(self.pair.edge.cancel())

    @precondition(lambda self: self.running)
    @rule(really=SELDOM)
    def vanish(self, really: bool) -> None:
        """The connection is lost with all that is under way; another edge goes on."""
        if not really:
            return
        committed = self.pair.committed
        self.pair.connection.lost()
        self.up.clear()
        self.pair = Pair(self.rig)
        self.pair.committed, self.pair.finish = committed, _core.Finish.cancelled

    @invariant()
    def is_the_targets(self) -> None:
        if self.alone is not None:
            assert self.alone.agrees(self.pair.committed, self.pair.finish)

    @property
    def served(self) -> Request | None:
        """The request as the cloud has it, when it is the edge's."""
        request = self.pair.connection._session._request
        return request if request is not None and request.number == self.pair.edge._request else None

    @invariant()
    def is_the_clouds_too(self) -> None:
        if self.served is not None and self.alone is not None:
            assert self.alone.agrees(self.served.committed, _core.Finish.none)

    @invariant()
    def is_one_tree(self) -> None:
        """Once nothing is under way both sides hold the same, and all of it is being verified."""
        edge, request = self.pair.edge, self.served
        if self.up or request is None:
            return
        assert waits(edge) or not request.free_run
        if not self.pair.down:
            assert edge._in_flight is not None
            assert edge._in_flight.mirror.tree() == request._mirror.tree()
            if not self.rig.scheduler.queue:
                assert not waits(edge) and unanswered(edge) == edge.held == 0

    @invariant()
    def is_worth_waiting(self) -> None:
        """What the edge waits for comes, if nothing more is sent."""
        edge = self.pair.edge
        if waits(edge):
            assert self.up or self.pair.down or self.rig.scheduler.queue

    def teardown(self) -> None:
        for _ in range(CONTEXT + 2):
            self.arrive(1000)
            self.rig.scheduler.run()
            self.hear()
            self.is_the_targets()
            if not self.running:
                break
            assert not waits(self.pair.edge)
            self.pair.up(self.pair.edge.draft(self.right(3), at=self.pair.now))
        self.arrive(1000)
        assert not self.running and not self.pair.down
        assert self.rig.service.sessions == 1


TestEdges = Edges.TestCase
TestEdges.settings = MANY
