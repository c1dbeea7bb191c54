"""Carries out what a session decides: bytes on one side, the scheduler and the model on the other."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from acespec_edge import _core
from acespec_edge.errors import AcespecError, PeerError, UsageError
from acespec_edge.grammar import Grammar
from cloud_stub.actions import Action, HangUp, MoreTail, Release, Send, Start, Verify
from cloud_stub.budget import KvBudget
from cloud_stub.continuation import Continuation, SelfDrafting
from cloud_stub.counters import Counters
from cloud_stub.judge import Ruling, Terms
from cloud_stub.prefix_store import Holding
from cloud_stub.scheduler import Job, Scheduler, Units
from cloud_stub.session import Phase, Session
from cloud_stub.session_contexts import SessionContexts
from cloud_stub.target import Target
from cloud_stub.verifiers.base import Verifier
from cloud_stub.work import Work, compiled

logger = logging.getLogger(__name__)

SHUTTING_DOWN = "the cloud is shutting down"


class Host(Protocol):
    """What the connections of a service share. ``compiler``: runs what takes a while and needs no model.
    ``self_drafting``: how the cloud goes on by itself, if not by plain decoding. ``prefill_chunk``: prompt
    tokens per turn at the model; ``retry_after``: seconds after which an edge that found no room may come
    back; ``draining``: no request may begin.
    """

    target: Target
    verifier: Verifier
    sampler: _core.Sampler
    scheduler: Scheduler
    counters: Counters
    kv: KvBudget
    compiler: ThreadPoolExecutor
    self_drafting: SelfDrafting | None
    prefill_chunk: int
    retry_after: float
    draining: bool


class _Running:
    """One request. ``work`` is touched by the worker thread only."""

    def __init__(self, terms: Terms, holding: Holding) -> None:
        self.terms = terms
        self.holding = holding
        self.work: Work | None = None
        self.job: Job | None = None
        self.compiling: Future[None] | None = None


class Connection:
    """Thread-safe: the socket's side and the worker call in concurrently; the session sees one at a time."""

    def __init__(
        self,
        host: Host,
        session: Session,
        contexts: SessionContexts,
        send: Callable[[bytes], None],
        hang_up: Callable[[str], None],
        forget: Callable[[Connection], None],
    ) -> None:
        self._host = host
        self._session = session
        self.contexts = contexts
        self._send = send
        self._hang_up = hang_up
        self._forget = forget
        self._limits = host.target.limits
        self._lock = threading.Lock()
        self._running: dict[int, _Running] = {}
        self._dropped = 0
        self._name = secrets.token_hex(4)

    @property
    def closed(self) -> bool:
        """Whether the session has ended: nothing more is taken in, what was sent is on its way out."""
        return self._session.phase is Phase.CLOSED

    @property
    def deadline(self) -> float:
        """Monotonic time at which ``expire`` is due."""
        return self._session.deadline

    def receive(self, data: bytes) -> None:
        """Takes one message as it came off the wire, whatever it holds."""
        now = time.monotonic()
        self._host.counters.add(received_bytes=len(data))
        with self._lock:
            try:
                message = _core.decode(data, self._limits)
            except PeerError as error:
                self._carry_out(self._session.refuse(str(error)))
            else:
                self._carry_out(self._session.receive(message, now))

    def refuse(self, reason: str) -> None:
        """The edge sent something that is no message at all."""
        with self._lock:
            self._carry_out(self._session.refuse(reason))

    def expire(self) -> None:
        """To be called when ``deadline`` has passed."""
        with self._lock:
            self._carry_out(self._session.expire(time.monotonic()))

    def close(self, reason: str, *, running: bool = True) -> None:
        """Ends the session from this side; ``running`` False: unless a request runs."""
        with self._lock:
            if running or not self._running:
                self._carry_out(self._session.close(reason))

    def turn_away(self, reason: str) -> None:
        """Answers a connection that was not admitted."""
        fault = _core.Fault(
            code=_core.FaultCode.busy,
            message=reason,
            retry_after_ms=self._retry_after_ms,
        )
        with self._lock:
            self._carry_out([*self._session.lost(), Send(fault), HangUp("busy")])

    def lost(self) -> None:
        """The socket is gone. Frees everything; idempotent."""
        self._note("session ended")
        with self._lock:
            self._carry_out(self._session.lost())
        self._forget(self)

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(message):
                    self._transmit(message)
                case Start():
                    self._start(action)
                case Verify() | MoreTail():
                    running = self._running[action.ticket]
                    running.job = self._host.scheduler.submit(self._rule(running, action))
                case Release(ticket, text):
                    self._note("request ended", request=ticket)
                    self._release(self._running.pop(ticket), text)
                case HangUp(reason):
                    self._hang_up(reason)
        if self._session.dropped_drafts != self._dropped:
            self._host.counters.add(dropped_drafts=self._session.dropped_drafts - self._dropped)
            self._dropped = self._session.dropped_drafts

    def _start(self, start: Start) -> None:
        kv, tokens = self._host.kv, start.terms.end
        if self._host.draining:
            self._carry_out(self._session.decline(start.ticket, SHUTTING_DOWN, self._retry_after_ms))
            return
        holding = self.contexts.admit(start.prompt, tokens)
        if holding is None:
            reason = (
                f"prompt and output may take {tokens} tokens of KV, and {kv.reserved} of {kv.capacity} are "
                "taken: come back later, or ask for a smaller max_tokens"
            )
            self._carry_out(self._session.decline(start.ticket, reason, self._retry_after_ms))
            return
        running = self._running[start.ticket] = _Running(start.terms, holding)
        self._host.counters.add(requests=1)
        self._note("request", request=start.ticket, prompt_tokens=len(start.prompt), most_tokens=tokens)
        if start.terms.grammar_kind == _core.Grammar.none:
            running.job = self._host.scheduler.submit(self._prefill(running, start, None))
            return
        running.compiling = self._host.compiler.submit(self._compile, running, start)

    def _compile(self, running: _Running, start: Start) -> None:
        """Makes the request's grammar and goes on; on the compiler's thread."""
        carried = start.prompt[len(start.prompt) - start.terms.rules.carried :]
        try:
            grammar = compiled(start.terms, self._host.verifier, carried)
        except Exception as error:
            self._report(start.ticket, error)
            return
        with self._lock:
            if self._running.get(start.ticket) is running:
                running.job = self._host.scheduler.submit(self._prefill(running, start, grammar))

    def _release(self, running: _Running, text: list[int] | None) -> None:
        if running.compiling is not None:
            running.compiling.cancel()
        if running.job is not None:
            self._host.scheduler.cancel(running.job)
        if text is None:
            self.contexts.free(running.holding, running.terms.end)
        else:
            self.contexts.keep(running.holding, text, running.terms.end)

    @property
    def _retry_after_ms(self) -> int:
        return int(self._host.retry_after * 1000)

    def _transmit(self, message: _core.Message) -> None:
        data = _core.encode(message, self._limits)
        self._host.counters.add(sent_bytes=len(data), faults=isinstance(message, _core.Fault))
        if isinstance(message, _core.Fault):
            self._note("fault", request=message.request, code=message.code.name, reason=message.message)
        self._send(data)

    def _note(self, what: str, **facts: object) -> None:
        logger.info(what, extra={"session": self._name, **facts})

    # Units of work, run by the scheduler's thread.

    def _prefill(self, running: _Running, start: Start, grammar: Grammar | None) -> Units:
        prompt, chunk = start.prompt, self._host.prefill_chunk
        busy = 0.0
        try:
            handle = running.holding.handle
            if handle is None:
                handle = running.holding.handle = self._host.verifier.open()
            reused = handle.length
            going_on = self._continuation(start.terms)
            work = Work(handle, self._host.sampler, start.terms, prompt, grammar, going_on)
            running.work = work
            self._host.counters.add(reused_tokens=reused)
            for first in range(reused, len(prompt), chunk):
                started = time.monotonic()
                rows = work.prefill(prompt[first : first + chunk])
                if first + chunk < len(prompt):
                    busy += time.monotonic() - started
                    yield
            self._conclude(start, replace(work.first(rows), reused=reused), 0, started, busy)
        except Exception as error:
            self._report(start.ticket, error)

    def _continuation(self, terms: Terms) -> Continuation | None:
        shared = self._host.self_drafting
        # A verdict holds as many tokens as a draft nodes, the target's own choice among them.
        most = self._host.target.max_nodes - 1
        return None if shared is None else Continuation(shared, terms.rules, most)

    def _rule(self, running: _Running, asked: Verify | MoreTail) -> Units:
        started = time.monotonic()
        work = running.work
        try:
            assert work is not None
            if isinstance(asked, Verify):
                self._conclude(asked, work.verify(asked), len(asked.tokens), started)
            else:
                self._conclude(asked, work.more_samples(), 0, started)
        except Exception as error:
            self._report(asked.ticket, error)
        return
        yield

    def _conclude(
        self, asked: Start | Verify | MoreTail, ruling: Ruling, nodes: int, started: float, busy: float = 0.0
    ) -> None:
        """Pads the forward that began at ``started`` and reports; ``busy``: seconds of forwards before
        it.
        """
        decided = ruling.token is not None or ruling.rejection is not None
        forwarded = decided and not isinstance(asked, MoreTail)
        if forwarded:
            self._host.scheduler.pad(started, nodes + ruling.own_nodes)
        now = time.monotonic()
        forward = busy + now - started
        queued = max(0.0, now - asked.arrived - forward)
        drawn = isinstance(asked, Verify) and asked.resampled is not None
        self._host.counters.add(
            forwards=int(forwarded),
            committed_tokens=int(drawn) + len(ruling.path) + len(ruling.tokens),
            verified_nodes=nodes,
            accepted_nodes=len(ruling.path),
            own_nodes=ruling.own_nodes,
            accepted_own_nodes=len(ruling.own),
            hinted_nodes=len(ruling.hint),
        )
        self._host.counters.queue.observe(queued)
        self._host.counters.verify.observe(forward)
        with self._lock:
            self._carry_out(self._session.ruled(asked.ticket, ruling, _us(queued), _us(forward), now))

    def _report(self, ticket: int, error: BaseException) -> None:
        if isinstance(error, UsageError):
            code, reason = _core.FaultCode.request, str(error)
        else:
            code, reason = _core.FaultCode.internal, f"the target failed: {error}"
            if not isinstance(error, AcespecError):
                logger.exception("the target failed", exc_info=error)
        with self._lock:
            self._carry_out(self._session.failed(ticket, code, reason))


def _us(seconds: float) -> int:
    return min(int(seconds * 1e6), 0xFFFFFFFF)
