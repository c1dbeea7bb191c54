"""The three ways to run a request: speculation, the target alone, the drafter alone. Each yields what is
committed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from acespec_edge import _core
from acespec_edge.channel import Channel
from acespec_edge.draft_mask import hint, rule
from acespec_edge.drafting import Drafter, chain_limit
from acespec_edge.request import Request
from acespec_edge.result import FinishReason
from acespec_edge.session_events import Committed
from acespec_edge.stats import Meter
from acespec_edge.vocabulary import Vocabulary

_FINISH: Final[dict[_core.Finish, FinishReason | None]] = {
    _core.Finish.none: None,
    _core.Finish.stop: "stop",
    _core.Finish.length: "length",
    _core.Finish.context: "context",
    _core.Finish.cancelled: "cancelled",
}


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that will not change any more; ``finish`` says that they are the last. ``logprobs``: one for
    each, when the request asks for them.
    """

    tokens: list[int]
    finish: FinishReason | None
    logprobs: list[_core.TokenLogprob] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pace:
    """How a runtime drafts: ``context`` is the drafter's, in tokens; ``width`` the nodes of one forward."""

    context: int
    draft_length: int
    width: int


@dataclass(frozen=True, slots=True)
class Run:
    """What all modes share while one request runs."""

    request: Request
    vocabulary: Vocabulary
    meter: Meter
    cancelled: threading.Event
    clock: Callable[[], float] = time.monotonic


def speculate(run: Run, channel: Channel, drafter: Drafter, pace: Pace) -> Iterator[Commit]:
    """The drafter proposes, the target decides; once the drafter's context is full, the target goes on
    alone."""
    request = run.request
    if len(request.prompt) >= pace.context:
        yield from target_alone(run, channel)
        return
    residual = request.sampling == "residual"
    run.meter.wire = channel.open(request, free_run=False)
    run.meter.reused_tokens = drafter.begin(request.prompt, request.rules, request.stop_ids, residual)
    mask = hint(drafter, request, run.vocabulary)
    remaining = request.max_tokens
    held: list[int] = []
    first = True
    while (verdict := _explore(run, channel, drafter, pace)) is not None:
        drawn: list[int] = []
        if verdict.sparse is not None:
            drawn = _draw(run, channel, drafter, verdict, verdict.sparse)
            if not drawn:
                return
        # What was drawn here is shown at once, but for a caller who wants log-probabilities: they come with
        # the next verdict.
        shown, held = (
            (held + verdict.tokens, drawn) if request.logprobs is not None else (verdict.tokens + drawn, [])
        )
        yield Commit(shown, _FINISH[verdict.finish], verdict.logprobs)
        if verdict.finish != _core.Finish.none:
            return
        tokens = verdict.tokens + drawn
        remaining -= len(tokens)
        resampled = drawn[0] if drawn else None
        if len(tokens) >= drafter.room:
            channel.draft([], free_run=True, resampled=resampled)
            yield from _follow(run, channel, held)
            return
        began = run.clock()
        recovery = drafter.apply_verdict(tokens)
        if mask is not None:
            mask.commit(tokens)
        if not first:
            run.meter.recovered(recovery.hit, recovery.microseconds)
        first = False
        length = chain_limit(
            drafter,
            draft_length=pace.draft_length,
            remaining=remaining,
            max_nodes=channel.welcome.max_nodes,
        )
        _draft(run, drafter, length)
        chain = drafter.take_chain(length)
        channel.draft(chain, weights=drafter.chain_weights if residual else (), resampled=resampled)
        run.meter.drafting.append(run.clock() - began)


def target_alone(run: Run, channel: Channel) -> Iterator[Commit]:
    """The target decodes by itself and streams what it commits."""
    run.meter.wire = channel.open(run.request, free_run=True)
    yield from _follow(run, channel)


def drafter_alone(run: Run, drafter: Drafter) -> Iterator[Commit]:
    """The drafter decodes by itself, by the same rules and noise. Raises UsageError when the prompt does not
    fit."""
    request = run.request
    run.meter.reused_tokens = drafter.begin(request.prompt, request.rules, request.stop_ids, False)
    mask = rule(drafter, request, run.vocabulary)
    remaining = request.max_tokens
    while drafter.room > 0:
        _draft(run, drafter, 1)
        tokens = drafter.take_chain(1)
        if run.cancelled.is_set() or not tokens:
            break
        remaining -= 1
        finish: FinishReason | None = None
        if tokens[0] in request.stop_ids:
            finish = "stop"
        elif remaining == 0:
            finish = "length"
        elif drafter.room == 1:
            finish = "context"
        yield Commit(tokens, finish)
        if finish is not None:
            return
        drafter.apply_verdict(tokens)
        if mask is not None:
            mask.commit(tokens)
    if not run.cancelled.is_set():
        yield Commit([], "context")


def _draw(
    run: Run, channel: Channel, drafter: Drafter, verdict: Committed, row: _core.SparseRow
) -> list[int]:
    """The token in place of the one that the verdict rejected; empty when the caller cancels."""
    while (token := drafter.resample(len(verdict.tokens), row)) is None:
        channel.more_samples()
        answer = channel.wait(run.cancelled)
        if answer is None:
            return []
        assert answer.sparse is not None
        row = _core.SparseRow(head=row.head, tail_mass=row.tail_mass, tail=[*row.tail, *answer.sparse.tail])
    return [token]


def _explore(run: Run, channel: Channel, drafter: Drafter, pace: Pace) -> Committed | None:
    """Grows the tree while the verdict is under way; None when the caller cancels."""
    while not run.cancelled.is_set():
        if (verdict := channel.poll()) is not None:
            return verdict
        if drafter.step(pace.width, False).exhausted:
            return channel.wait(run.cancelled)
        run.meter.forwards += 1
    return None


def _draft(run: Run, drafter: Drafter, length: int) -> None:
    """Extends the main chain to ``length`` tokens, or as far as the drafter can. The cloud idles meanwhile,
    so nothing else is expanded."""
    while drafter.ready < length and not run.cancelled.is_set():
        if drafter.step(1, True).exhausted:
            return
        run.meter.forwards += 1


def _follow(run: Run, channel: Channel, held: Sequence[int] = ()) -> Iterator[Commit]:
    """``held``: committed before, and to be shown with the first verdict."""
    while (verdict := channel.wait(run.cancelled)) is not None:
        yield Commit([*held, *verdict.tokens], _FINISH[verdict.finish], verdict.logprobs)
        if verdict.finish != _core.Finish.none:
            return
        held = ()
