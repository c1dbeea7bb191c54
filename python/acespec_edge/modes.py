"""The target alone and the drafter alone, and what all ways to run a request share. Each yields what is
committed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from acespec_edge import _core
from acespec_edge.channel import Channel
from acespec_edge.control import Controller
from acespec_edge.draft_mask import rule
from acespec_edge.drafting import Drafter
from acespec_edge.request import Request
from acespec_edge.result import FinishReason, Origin
from acespec_edge.stats import Meter
from acespec_edge.vocabulary import Vocabulary

FINISH: Final[dict[_core.Finish, FinishReason | None]] = {
    _core.Finish.none: None,
    _core.Finish.stop: "stop",
    _core.Finish.length: "length",
    _core.Finish.context: "context",
    _core.Finish.cancelled: "cancelled",
}


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that will not change any more; ``finish`` says that they are the last. ``logprobs``: one for
    each, when the request asks for them. ``origin``: who chose them.
    """

    tokens: list[int]
    finish: FinishReason | None
    logprobs: list[_core.TokenLogprob] = field(default_factory=list)
    origin: Origin = "target"


@dataclass(frozen=True, slots=True)
class Run:
    """What all modes share while one request runs."""

    request: Request
    vocabulary: Vocabulary
    meter: Meter
    cancelled: threading.Event
    clock: Callable[[], float] = time.monotonic


def target_alone(run: Run, channel: Channel, control: Controller) -> Iterator[Commit]:
    """The target decodes by itself and streams what it commits."""
    control.begin(len(run.request.prompt))
    run.meter.opened(channel.open(run.request, free_run=True))
    yield from follow(run, channel, control)


def drafter_alone(run: Run, drafter: Drafter) -> Iterator[Commit]:
    """The drafter decodes by itself, by the same rules and noise. Raises UsageError when the prompt does not
    fit."""
    request = run.request
    run.meter.reused(drafter.begin(request.prompt, request.rules, request.stop_ids, False))
    mask = rule(drafter, request, run.vocabulary)
    remaining = request.max_tokens
    while drafter.room > 0:
        while not drafter.ready and not run.cancelled.is_set() and not drafter.step(1, True).exhausted:
            run.meter.forwards += 1
        tokens = drafter.take_chain(1).tokens
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
        yield Commit(tokens, finish, origin="edge")
        if finish is not None:
            return
        drafter.apply_verdict(tokens)
        if mask is not None:
            mask.commit(tokens)
    if not run.cancelled.is_set():
        yield Commit([], "context", origin="edge")


def follow(run: Run, channel: Channel, control: Controller, held: Sequence[int] = ()) -> Iterator[Commit]:
    """Yields what a free-running target commits. ``held``: committed before, to be shown with the first
    verdict."""
    while (verdict := channel.wait(run.cancelled)) is not None:
        control.answered(verdict)
        run.meter.wire.rtt = control.link.rtt
        yield Commit([*held, *verdict.tokens], FINISH[verdict.finish], verdict.logprobs)
        if verdict.finish != _core.Finish.none:
            return
        held = ()
