"""Speculation: the drafter proposes, the target decides, and neither waits for the other longer than it
pays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from acespec_edge import _core
from acespec_edge.channel import Channel
from acespec_edge.control import Controller
from acespec_edge.draft_mask import hint
from acespec_edge.drafting import Drafter, Taken
from acespec_edge.growth import Growth
from acespec_edge.modes import FINISH, Commit, Run, follow, target_alone
from acespec_edge.session_events import Committed

MOST_NODES: Final = 88
"""Nodes of one draft at most, whatever they are worth: a message under 512 bytes for ids below 2**24, with
residual mode's weights too."""


def speculate(
    run: Run, channel: Channel, drafter: Drafter, control: Controller, context: int
) -> Iterator[Commit]:
    """Runs a request. ``context``: tokens that the drafter holds; a longer text is the target's alone."""
    if len(run.request.prompt) >= context:
        return target_alone(run, channel, control)
    return _Speculation(run, channel, drafter, control).commits()


class _Speculation:
    """One request: draft, exchange, commit, over and over.

    While a verdict is under way the tree grows. With the verdict it is re-rooted, and the best of it goes up,
    after as many further forwards as are worth waiting for. What the controller finds worth sending earlier
    goes as a delta: when the cloud is done with what it has, it goes on with that.
    """

    def __init__(self, run: Run, channel: Channel, drafter: Drafter, control: Controller) -> None:
        self._run = run
        self._channel = channel
        self._drafter = drafter
        self._control = control
        self._policy = control.policy
        self._residual = run.request.sampling == "residual"
        self._remaining = run.request.max_tokens
        self._hint: list[int] = []
        """Of the last verdict."""
        self._growth: Growth

    def commits(self) -> Iterator[Commit]:
        """What is committed, as it is."""
        try:
            yield from self._commits()
        finally:
            self._run.meter.policy, self._run.meter.why = self._policy.name, self._control.why()

    def _commits(self) -> Iterator[Commit]:
        run, channel, drafter, control = self._run, self._channel, self._drafter, self._control
        request = run.request
        control.begin(len(request.prompt), residual=self._residual)
        reused = drafter.begin(request.prompt, request.rules, request.stop_ids, self._residual)
        run.meter.reused(reused)
        ahead = control.starts_alone(len(request.prompt) - reused)
        run.meter.opened(channel.open(request, free_run=not self._residual and ahead))
        self._growth = Growth(drafter, control, run.meter, run.clock)
        mask = hint(drafter, request, run.vocabulary)
        held: list[int] = []
        first = True
        while (verdict := self._next()) is not None:
            control.answered(verdict)
            control.accepts(drafter.acceptance())
            if (self._residual or self._policy.send == "chain") and verdict.nodes:
                control.walked(verdict.accepted, verdict.nodes)
            run.meter.wire.rtt = control.link.rtt
            drawn: list[int] = []
            if verdict.sparse is not None:
                drawn = self._draw(verdict, verdict.sparse)
                if not drawn:
                    return
            # What was drawn here is shown at once, but for a caller who wants log-probabilities: they come
            # with the next verdict.
            shown, held = (
                (held + verdict.tokens, drawn)
                if request.logprobs is not None
                else (verdict.tokens + drawn, [])
            )
            yield Commit(shown, FINISH[verdict.finish], verdict.logprobs)
            if verdict.finish != _core.Finish.none:
                return
            tokens = verdict.tokens + drawn
            if not tokens:
                continue
            self._remaining -= len(tokens)
            resampled = drawn[0] if drawn else None
            if len(tokens) >= drafter.room:
                channel.draft([], free_run=True, resampled=resampled)
                yield from follow(run, channel, control, held)
                return
            began = run.clock()
            if self._hint:
                control.hinted(self._hint, tokens)
            self._hint = verdict.hint
            recovery = drafter.apply_verdict(tokens)
            if mask is not None:
                mask.commit(tokens)
            if not first:
                run.meter.recovered(recovery.hit, recovery.microseconds)
                control.recovered(recovery.hit)
            first = False
            if self._reply(verdict, resampled, missed=not recovery.hit):
                run.meter.drafting.append(run.clock() - began)

    # The wait.

    def _next(self) -> Committed | None:
        """The next verdict; meanwhile the tree grows. None when the caller cancels."""
        run, channel = self._run, self._channel
        while not run.cancelled.is_set():
            if (verdict := channel.poll()) is not None:
                return verdict
            if self._send_ahead() or self._growth.grow():
                continue
            if (verdict := channel.wait(run.cancelled, self._control.patience(run.clock()))) is not None:
                return verdict
        return None

    # What is sent.

    def _reply(self, verdict: Committed, resampled: int | None, *, missed: bool) -> bool:
        """Answers a verdict: sends the next draft, unless the cloud has enough to do already."""
        control, channel = self._control, self._channel
        # The target is left alone, but the drafter reads along, so that it can be told when that changes.
        self._growth.resting = not self._residual and not control.drafting_pays()
        if self._growth.resting:
            if not channel.runs_free:
                channel.draft([], free_run=True)
            self._run.meter.chose("cloud")
            return False
        if channel.owed and not channel.runs_free:
            control.working(verdict.at - control.link.rtt, channel.held)
            self._growth.go_on()
            return False
        if channel.runs_free and self._drafter.pending > 1:
            return False  # still reading; the cloud does not wait for it
        if missed and self._hint and not channel.runs_free and self._send_hint():
            return False
        began = self._run.clock()
        taken = self._compose()
        if not channel.runs_free:
            control.composed(self._run.clock() - began)
        if taken.tokens or not channel.runs_free:
            self._send(taken, resampled)
        return True

    def _compose(self) -> Taken:
        """The next draft, after the forwards that are worth waiting for."""
        if self._residual or self._policy.send == "chain":
            return self._chain()
        drafter, control = self._drafter, self._control
        room = min(self._room(), control.target.cap) if self._remaining > 1 else 0
        while True:
            count = control.count(drafter.survey(room))
            enough = count >= room or drafter.ready + 1 >= self._remaining
            # A cloud that goes on by itself waits for nothing.
            if enough or self._channel.runs_free or self._run.cancelled.is_set():
                break
            if not self._growth.grow(drafted=count):
                break
        return drafter.take(count)

    def _chain(self) -> Taken:
        """The main chain. In residual mode its length must not depend on its tokens, else the output would be
        biased."""
        drafter, control = self._drafter, self._control
        # A verdict commits one token more than it accepts, and all must have room.
        most = max(0, min(self._room(), control.target.cap, self._remaining - 1, drafter.room - 1))
        length = self._policy.length
        if length is None and (self._residual or not self._policy.by_confidence):
            length = control.chain_length(most)
        if length is not None:
            length = min(length, most)
            while drafter.ready < length and not self._run.cancelled.is_set():
                if not self._growth.forward(1, extend=True):
                    break
            return drafter.take_chain(length)
        while True:
            weights = list(itertools.accumulate(drafter.chain_acceptances(most), lambda a, b: a * b))
            tip = weights[-1] if weights else 1.0
            worth = len(weights) < most and control.width([tip], self._run.clock(), drafted=len(weights))
            if self._channel.runs_free or self._run.cancelled.is_set() or not worth:
                break
            if not self._growth.forward(1, extend=True):
                break
        return drafter.take_chain(control.count(weights))

    def _send(self, taken: Taken, resampled: int | None) -> None:
        channel, control = self._channel, self._control
        idle = not (channel.owed or channel.runs_free)
        first = channel.next_node
        is_chain = taken.parents == [0, *range(first, first + len(taken.tokens) - 1)][: len(taken.tokens)]
        weights = self._drafter.chain_weights if self._residual else ()
        now = self._run.clock()
        wants = not self._residual and control.wants_hint()
        size = channel.draft(
            taken.tokens,
            None if is_chain else taken.parents,
            free_run=not self._residual and control.goes_on(),
            weights=weights,
            resampled=resampled,
            wants_hint=wants,
        )
        if idle:
            control.sent(now, channel.held, size, wants_hint=wants)
        else:
            control.working(now, channel.held)
        self._run.meter.chose("chain" if is_chain else "tree")
        self._growth.start_round(len(taken.tokens))

    def _send_hint(self) -> bool:
        """Sends what the cloud guesses, without waiting for the drafter, if that is likely to yield more."""
        channel, control = self._channel, self._control
        count = control.hint_length(min(len(self._hint), self._room(), self._remaining - 1))
        if not count:
            return False
        wants, now = control.wants_hint(), self._run.clock()
        size = channel.draft(self._hint[:count], wants_hint=wants)
        self._drafter.skip_numbers(count)
        control.sent(now, channel.held, size, wants_hint=wants)
        self._run.meter.chose("hint")
        self._growth.start_round(0)
        return True

    def _send_ahead(self) -> bool:
        """Sends more of the tree before the verdict, if this is the moment and it pays."""
        channel, control, drafter = self._channel, self._control, self._drafter
        if self._residual or self._policy.in_flight is False or not channel.owed or channel.runs_free:
            return False
        if not control.delta_is_due(self._run.clock()):
            return False
        control.asked()
        if drafter.pending:
            return False
        if self._policy.send == "chain":
            count = control.chain_length(self._room())
            accepted, fits = self._chain_prospect(count)
        else:
            count = control.count(drafter.survey(self._room()))
            accepted, fits = drafter.prospect(count)
        if not count or not control.delta_pays(accepted, fits, count):
            return False
        taken = drafter.take_chain(count) if self._policy.send == "chain" else drafter.take(count)
        if not taken.tokens:
            return False
        self._run.meter.chose("in-flight")
        channel.draft(taken.tokens, taken.parents, wants_hint=control.wants_hint())
        return True

    def _chain_prospect(self, length: int) -> tuple[float, float]:
        """As Drafter.prospect, of the next ``length`` tokens of the main chain."""
        ready, sent = self._drafter.ready, self._drafter.ready - self._drafter.unsent
        paths = itertools.accumulate(self._drafter.chain_acceptances(ready), lambda a, b: a * b)
        weights = list(paths)[sent : sent + length]
        return (sum(weights[1:]), weights[0]) if len(weights) > 1 else (0.0, 0.0)

    def _room(self) -> int:
        """Nodes that the cloud still takes."""
        most = min(MOST_NODES, self._channel.welcome.max_nodes - self._channel.held)
        return max(0, most if self._policy.nodes is None else min(most, self._policy.nodes))

    # Residual mode.

    def _draw(self, verdict: Committed, row: _core.SparseRow) -> list[int]:
        """The token in place of the one that the verdict rejected; empty when the caller cancels."""
        while (token := self._drafter.resample(len(verdict.tokens), row)) is None:
            self._channel.more_samples()
            answer = self._channel.wait(self._run.cancelled)
            if answer is None:
                return []
            assert answer.sparse is not None
            row = _core.SparseRow(
                head=row.head, tail_mass=row.tail_mass, tail=[*row.tail, *answer.sparse.tail]
            )
        return [token]
