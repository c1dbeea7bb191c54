"""Answers through the runtime."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from acespec_edge import _core
from acespec_edge.drafting import Drafter
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import PeerError
from acespec_edge.request import Sampling
from tools.bench.paradigms.paradigms import Contender
from tools.bench.paradigms.runs import Question, Run, watched

if TYPE_CHECKING:
    from acespec_edge.policy import Policy


class RuntimeRunner:
    """A runtime at one temperature's rule. `drafter`: the runtime's, made to forget the answer before, whose
    prompt was most likely the same; None where none is used. `padding`: bytes that came down beside the
    runtime's own, so far.
    """

    def __init__(
        self,
        edge: EdgeRuntime,
        sampling: Sampling,
        drafter: Drafter | None,
        padding: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._edge = edge
        self._sampling: Sampling = sampling
        self._drafter = drafter
        self._padding = padding
        self._clock = clock

    def run(self, question: Question, temperature: float) -> Run:
        """See Runner."""
        if self._drafter is not None:
            forget(self._drafter, question.ids, self._edge.bundle.vocabulary)
        padded = self._padding()
        started = self._clock()
        stream = self._edge.stream(
            question.ids,
            max_tokens=question.tokens,
            temperature=temperature,
            seed=question.seed,
            sampling=self._sampling,
        )
        ids, shown = watched((piece.token_ids for piece in stream), started, self._clock)
        stats = stream.result.stats
        return Run(
            ids=ids,
            shown=shown,
            bytes_up=stats.bytes_up,
            bytes_down=stats.bytes_down + self._padding() - padded,
            max_up_bytes=stats.max_draft_bytes,
            rounds=stats.rounds,
            accepted=stats.accepted_mean,
            hit_rate=stats.hit_rate,
            drafter_forwards=None if self._drafter is None else stats.forwards,
            chosen=stats.chosen,
            why=stats.why,
        )

    def close(self) -> None:
        """See Runner."""
        self._edge.close()


def lead(edge: EdgeRuntime, question: Question, position: int) -> float:
    """By how much the logit of the target's own token led the second best at a place of its greedy answer.

    `edge`: of mode "cloud". Raises PeerError when the answer ends before.
    """
    result = edge.generate(question.ids, max_tokens=position + 1, logprobs=2)
    if result.logprobs is None or len(result.logprobs) <= position:
        raise PeerError(f"the target's answer ended before token {position}, where it had not before")
    best, second = result.logprobs[position].top[:2]
    return best.logprob - second.logprob


def forget(drafter: Drafter, prompt: Sequence[int], vocabulary: int) -> None:
    """Leaves the drafter with nothing that a request with this prompt could use again."""
    other = (prompt[0] + 1) % vocabulary if prompt else 0
    drafter.begin([other], _core.SamplingRules(), [], False)


def policy_of(contender: Contender) -> Policy:
    """What the runtime is to do for a contender."""
    from acespec_edge.policy import POLICIES

    policy = POLICIES[contender.paradigm.policy]
    if contender.budget is None:
        return policy
    return dataclasses.replace(policy, budget=contender.budget)
