"""Requests of a client that sends whatever an edge may, and sends some of it twice: what is committed is what
the target alone writes.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from acespec_edge import _core
from tests.cloud.machine_kit import CONTEXT, MANY, MAX_NODES, MOSTLY, SELDOM, TOKENS, Requests
from tests.cloud.rig import Client


class Trees(Requests):
    """A client that sends what an edge may: trees, several at once, on old bases, some of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.client: Client = self.rig.client()
        self.number = self.round = 0
        self.drafts: list[_core.Draft] = []
        self.texts: dict[int, list[int]] = {}
        self.finish = _core.Finish.cancelled

    @property
    def running(self) -> bool:
        return self.finish == _core.Finish.none

    @property
    def committed(self) -> list[int]:
        return self.client.committed

    def start(self, prompt: list[int], free_run: bool, **rules: Any) -> None:
        assert self.alone is not None
        self.number, self.round, self.finish = self.number + 1, 0, _core.Finish.none
        self.client.committed = list(prompt)
        self.client.begin()
        self.drafts.clear()
        self.texts.clear()
        self.client.say(
            _core.Open(
                request=self.number,
                prompt=prompt,
                rules=_core.SamplingRules(**self.rules, **rules),
                stop_ids=self.alone.stop_ids,
                max_tokens=self.alone.max_tokens,
                free_run=free_run,
            )
        )

    @precondition(lambda self: self.client.inbox)
    @rule()
    def take(self) -> None:
        message = self.client.take()
        assert isinstance(message, _core.Verdict), message
        self.finish = message.finish

    def hear(self) -> None:
        while self.client.inbox:
            self.take()

    @precondition(lambda self: self.running and len(self.drafts) < 60 and self.may_hold() <= MAX_NODES - 8)
    @rule(
        nodes=st.lists(st.tuples(st.sampled_from([0, 1, 1, 2, 3, 9]), MOSTLY, TOKENS), max_size=8),
        back=st.sampled_from([0, 0, 0, 1, 2]),
        free_run=SELDOM,
    )
    def draft(self, nodes: list[tuple[int, bool, int]], back: int, free_run: bool) -> None:
        """``nodes``: how far before it the parent lies, in this draft or in one before (0: the root), whether
        the target would choose the token (where it can be told), and a token to take otherwise. ``back``:
        tokens committed since the base.
        """
        assert self.alone is not None
        base = max(len(self.alone.prompt), len(self.committed) - back)
        first = self.client.next_node
        tokens: list[int] = []
        offsets: list[int] = []
        for number, (before, wanted, other) in enumerate(nodes, first):
            offset = before if before < number else 0
            above = self.committed[:base] if offset == 0 else self.texts.get(number - offset)
            right = None if above is None else self.next_of(above)
            token = right if wanted and right is not None else other
            if above is not None:
                self.texts[number] = [*above, token]
            tokens.append(token)
            offsets.append(offset)
        self.send(base, tokens, parent_offsets=offsets, free_run=free_run)

    def may_hold(self) -> int:
        """Nodes that the cloud holds at most."""
        length = len(self.committed)
        return sum(text[:length] == self.committed and len(text) > length for text in self.texts.values())

    def send(self, base: int, tokens: list[int], **fields: Any) -> None:
        self.round += 1
        self.drafts.append(self.client.send(self.round, tokens, request=self.number, base=base, **fields))

    @precondition(lambda self: self.drafts)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        self.client.say(data.draw(st.sampled_from(self.drafts)))

    @precondition(lambda self: self.running)
    @rule(really=SELDOM)
    def cancel(self, really: bool) -> None:
        if really:
            self.client.say(_core.Cancel(request=self.number))

    @invariant()
    def is_the_targets(self) -> None:
        if self.alone is not None:
            assert self.alone.agrees(self.committed, self.finish)

    @invariant()
    def is_the_clouds_too(self) -> None:
        request = self.client.connection._session._request
        if request is not None and self.alone is not None:
            assert self.alone.agrees(request.committed, _core.Finish.none)

    def teardown(self) -> None:
        for _ in range(CONTEXT + 2):
            self.rig.scheduler.run()
            self.hear()
            self.is_the_targets()
            if not self.running:
                break
            self.send(len(self.committed), self.right(3))
        assert not self.running and self.client.hung_up is None


TestTrees = Trees.TestCase
TestTrees.settings = MANY
