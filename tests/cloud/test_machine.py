"""One output, split in every way: random blocks, trees, drafts late and twice, free runs, stops, cancels,
lost connections and requests that go on. Whatever happens, what is committed is what the target alone writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from acespec_edge import _core
from acespec_edge.protocol import ROOT
from acespec_edge.session_state import State
from tests.cloud.rig import Client, Rig, hashed_logits, scripted_rig
from tests.cloud.test_pair import Pair

SIZE = 16
CONTEXT = 48
LOGITS = hashed_logits(SIZE)
SAMPLER = _core.Sampler(SIZE)

TOKENS = st.integers(0, SIZE - 1)
PROMPTS = st.lists(TOKENS, min_size=1, max_size=4)
STOPS = st.lists(TOKENS, max_size=2)
LENGTHS = st.integers(1, 24)
MOSTLY = st.sampled_from([True, True, True, False])
SELDOM = st.integers(0, 7).map(lambda number: number == 7)
RULES = st.builds(
    dict,
    temperature=st.sampled_from([0.0, 0.8, 1.3]),
    seed=st.integers(0, 5),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.8]),
)
MANY = settings(max_examples=300, stateful_step_count=40, deadline=None)


class Alone:
    """A request as the target alone would answer it. ``output``: up to and with the token that ends it."""

    def __init__(
        self, prompt: Sequence[int], rules: _core.SamplingRules, stop_ids: Sequence[int], max_tokens: int
    ) -> None:
        self.prompt, self.stop_ids, self.max_tokens = list(prompt), list(stop_ids), max_tokens
        shaper = _core.LogitShaper(SIZE, rules, self.prompt, self.stop_ids)
        self.output: list[int] = []
        self.finish = _core.Finish.none
        while self.finish == _core.Finish.none:
            text = [*self.prompt, *self.output]
            token = SAMPLER.choose(shaper.shape(LOGITS(text)), rules, len(text))
            shaper.commit([token])
            self.output.append(token)
            if token in stop_ids:
                self.finish = _core.Finish.stop
            elif len(self.output) == max_tokens:
                self.finish = _core.Finish.length
            elif len(text) + 1 == CONTEXT:
                self.finish = _core.Finish.context

    def agrees(self, committed: Sequence[int], finish: _core.Finish) -> bool:
        """Whether ``committed`` may stand there, the request having ended so."""
        output = list(committed[len(self.prompt) :])
        if committed[: len(self.prompt)] != self.prompt or output != self.output[: len(output)]:
            return False
        ended = finish not in (_core.Finish.none, _core.Finish.cancelled)
        return not ended or (output == self.output and finish == self.finish)


class Requests(RuleBasedStateMachine):
    """What both machines have in common: requests that start, and requests that go on where one ended."""

    def __init__(self) -> None:
        super().__init__()
        self.rig: Rig = scripted_rig(SIZE, max_context=CONTEXT)
        self.alone: Alone | None = None
        self.rules: dict[str, Any] = {}
        self.written = 0

    @property
    def running(self) -> bool:
        raise NotImplementedError

    @property
    def committed(self) -> list[int]:
        raise NotImplementedError

    def start(self, prompt: list[int], free_run: bool, **rules: Any) -> None:
        raise NotImplementedError

    def hear(self) -> None:
        """Takes all that arrived."""
        raise NotImplementedError

    @precondition(lambda self: not self.running)
    @rule(prompt=PROMPTS, rules=RULES, stop_ids=STOPS, max_tokens=LENGTHS, free_run=SELDOM)
    def open(
        self,
        prompt: list[int],
        rules: dict[str, Any],
        stop_ids: list[int],
        max_tokens: int,
        free_run: bool,
    ) -> None:
        self.rules, self.written = rules, 0
        self.alone = Alone(prompt, _core.SamplingRules(**rules), stop_ids, max_tokens)
        self.start(prompt, free_run)

    @precondition(lambda self: not self.running and self.alone and len(self.committed) < CONTEXT)
    @rule(max_tokens=LENGTHS, free_run=SELDOM)
    def go_on(self, max_tokens: int, free_run: bool) -> None:
        """The same request behind what it wrote: by the rules it is the unbroken one."""
        assert self.alone is not None
        prompt = list(self.committed)
        self.written += len(prompt) - len(self.alone.prompt)
        rules = _core.SamplingRules(**self.rules, carried=self.written)
        self.alone = Alone(prompt, rules, self.alone.stop_ids, max_tokens)
        self.start(prompt, free_run, carried=self.written)

    @precondition(lambda self: self.rig.scheduler.queue)
    @rule(units=st.integers(1, 3))
    def work(self, units: int) -> None:
        for _ in range(min(units, len(self.rig.scheduler.queue))):
            self.rig.scheduler.step()

    @precondition(lambda self: self.running)
    @rule(units=st.integers(1, 5))
    def settle(self, units: int) -> None:
        for _ in range(units):
            self.work(1)
        self.hear()

    def right(self, length: int) -> list[int]:
        """The next tokens that the target will choose."""
        assert self.alone is not None
        done = len(self.committed) - len(self.alone.prompt)
        return self.alone.output[done : done + length]


class Edges(Requests):
    """An edge's session and the cloud's, joined by two queues."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(self.rig)

    @property
    def running(self) -> bool:
        return self.pair.edge.state in (State.RUNNING, State.CANCELLING)

    @property
    def committed(self) -> list[int]:
        return self.pair.committed

    def start(self, prompt: list[int], free_run: bool, **rules: Any) -> None:
        assert self.alone is not None
        self.pair.open(
            prompt,
            rules=_core.SamplingRules(**self.rules, **rules),
            stop_ids=self.alone.stop_ids,
            max_tokens=self.alone.max_tokens,
            free_run=free_run,
        )

    @precondition(lambda self: self.pair.down)
    @rule(most=st.integers(1, 3))
    def deliver(self, most: int) -> None:
        self.pair.deliver(most)

    def hear(self) -> None:
        self.pair.deliver()

    @precondition(lambda self: self.pair.edge.state is State.RUNNING and not self.pair.edge.waiting)
    @rule(length=st.integers(0, 6), wrong=st.sampled_from([None, None, 0, 1, 2, 3]), free_run=SELDOM)
    def draft(self, length: int, wrong: int | None, free_run: bool) -> None:
        chain = self.right(length)
        if wrong is not None and wrong < len(chain):
            chain[wrong] = (chain[wrong] + 1) % SIZE
        self.pair.up(self.pair.edge.draft(chain, at=self.pair.now, free_run=free_run))

    @precondition(lambda self: self.pair.edge.state is State.RUNNING)
    @rule(really=SELDOM)
    def cancel(self, really: bool) -> None:
        if really:
            self.pair.up(self.pair.edge.cancel())

    @precondition(lambda self: self.running)
    @rule(really=SELDOM)
    def vanish(self, really: bool) -> None:
        """The connection is lost with all that is under way; another edge goes on."""
        if not really:
            return
        committed = self.pair.committed
        self.pair.connection.lost()
        self.pair = Pair(self.rig)
        self.pair.committed, self.pair.finish = committed, _core.Finish.cancelled

    @invariant()
    def is_the_targets(self) -> None:
        if self.alone is not None:
            assert self.alone.agrees(self.pair.committed, self.pair.finish)

    def teardown(self) -> None:
        for _ in range(CONTEXT + 2):
            self.rig.scheduler.run()
            self.pair.deliver()
            self.is_the_targets()
            if not self.running:
                break
            if not self.pair.edge.waiting and self.pair.edge.state is State.RUNNING:
                self.pair.up(self.pair.edge.draft(self.right(3), at=self.pair.now))
        assert not self.running and not self.pair.down
        assert self.rig.service.sessions == 1


class Trees(Requests):
    """A client that sends what an edge may: trees, several at once, on old bases, some of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.client: Client = self.rig.client()
        self.number = self.round = 0
        self.drafts: list[_core.Draft] = []
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

    @precondition(lambda self: self.running and len(self.drafts) < 60)
    @rule(
        nodes=st.lists(st.tuples(st.sampled_from([0, 1, 1, 2, 3]), MOSTLY, TOKENS), max_size=8),
        back=st.sampled_from([0, 0, 0, 1, 2]),
        free_run=SELDOM,
    )
    def draft(self, nodes: list[tuple[int, bool, int]], back: int, free_run: bool) -> None:
        """``nodes``: how far before the last one the parent lies, whether the target would choose the token
        (where it can be told), and a token to take otherwise. ``back``: tokens committed since the base.
        """
        assert self.alone is not None
        base = max(len(self.alone.prompt), len(self.committed) - back)
        right = self.alone.output[base - len(self.alone.prompt) :]
        tokens: list[int] = []
        parents: list[int] = []
        depth_right = {ROOT: 0}
        for node, (before, wanted, other) in enumerate(nodes):
            parent = max(ROOT, node - 1 - before)
            depth = depth_right.get(parent)
            token = right[depth] if wanted and depth is not None and depth < len(right) else other
            if depth is not None and depth < len(right) and token == right[depth]:
                depth_right[node] = depth + 1
            tokens.append(token)
            parents.append(parent)
        offsets = [0 if parent == ROOT else node - parent for node, parent in enumerate(parents)]
        self.send(base, tokens, parent_offsets=offsets, free_run=free_run)

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

    def teardown(self) -> None:
        for _ in range(CONTEXT + 2):
            self.rig.scheduler.run()
            self.hear()
            self.is_the_targets()
            if not self.running:
                break
            self.send(len(self.committed), self.right(3))
        assert not self.running and self.client.hung_up is None


TestEdges = Edges.TestCase
TestEdges.settings = MANY
TestTrees = Trees.TestCase
TestTrees.settings = MANY
