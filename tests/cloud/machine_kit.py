"""Requests that start, end and go on at random over a scripted target, for machines that draft in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from acespec_edge import _core
from tests.cloud.rig import Rig, hashed_logits, scripted_rig

SIZE = 16
CONTEXT = 48
MAX_NODES = 24
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
        self.rig: Rig = scripted_rig(SIZE, max_context=CONTEXT, max_nodes=MAX_NODES)
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

    def next_of(self, text: Sequence[int]) -> int | None:
        """The token that the target will choose behind ``text``, where it can be told."""
        assert self.alone is not None
        done = len(text) - len(self.alone.prompt)
        right = self.alone.agrees(text, _core.Finish.none) and done < len(self.alone.output)
        return self.alone.output[done] if right else None
