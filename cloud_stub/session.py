"""The server's half of a session, without I/O: decoded messages, rulings and the time go in, actions come
out.

One session is one connection; it runs one request at a time, and of a request at most one piece of model
work at a time. The committed tokens held here are the truth for both sides.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any, Protocol

from acespec_edge import _core
from acespec_edge.errors import PeerError, UsageError
from acespec_edge.prompt_codec import said_prompt
from acespec_edge.protocol import round_after, wire_round
from cloud_stub.actions import Action, HangUp, Message, MoreTail, Release, Send, Start, Verify
from cloud_stub.judge import Ruling
from cloud_stub.pending import Attempt
from cloud_stub.request import Bounds, Request
from cloud_stub.target import Target

_Finish = _core.Finish
_FaultCode = _core.FaultCode


class Phase(enum.Enum):
    """Where the connection is."""

    GREETING = "greeting"
    READY = "ready"
    CLOSED = "closed"


class Contexts(Protocol):
    """What is kept of requests that have ended."""

    def resume(self, key: bytes) -> bool:
        """Goes on with the session of this key; False when nothing is known of it."""

    def beginning(self, count: int, digest: bytes) -> list[int] | None:
        """The first ``count`` tokens of a kept text whose digest this is; None when there is no such text."""


class Session:
    """Not thread-safe. Every method returns the actions to carry out, in order; time is in monotonic
    seconds.
    """

    def __init__(
        self,
        target: Target,
        session_key: bytes,
        now: float,
        contexts: Contexts | None = None,
        spend: Callable[[int, float], float] = lambda nodes, now: 0.0,
        admit: Callable[[], str | None] = lambda: None,
        retry_after: float = 0.0,
    ) -> None:
        """``contexts``: None where none are kept. ``spend``: takes nodes to verify and the time; seconds
        until they may come, if not now. ``admit``: why the session may not begin, if so; it may come back
        ``retry_after`` seconds later.
        """
        self.phase = Phase.GREETING
        self.dropped_drafts = 0
        self._target = target
        self._key = session_key
        self._contexts = contexts
        self._deadline = now + target.handshake_timeout
        self._end = now + target.session_timeout
        self._spend = spend
        self._admit = admit
        self._retry_after = retry_after
        self._request: Request | None = None
        self._tickets = 0

    @property
    def deadline(self) -> float:
        """When ``expire`` is due unless something happens before."""
        return min(self._deadline, self._end)

    def receive(self, message: Message, now: float) -> list[Action]:
        """Takes a decoded message."""
        if self.phase is Phase.CLOSED:
            return []
        handler = _HANDLERS.get((self.phase, type(message)))
        if handler is None:
            expected = ", ".join(kind.__name__ for phase, kind in _HANDLERS if phase is self.phase)
            return self.refuse(f"{type(message).__name__} is out of place here: {expected} would be right")
        self._touch(now)
        return handler(self, message, now)

    def refuse(self, reason: str) -> list[Action]:
        """Ends the session because the edge broke the protocol (malformed bytes, messages out of place)."""
        return self._fail(_FaultCode.protocol, reason)

    def ruled(self, ticket: int, ruling: Ruling, queue_us: int, verify_us: int, now: float) -> list[Action]:
        """Takes the result of ``Start`` or ``Verify``."""
        request = self._request
        if request is None or request.ticket != ticket or request.attempt is None:
            return []
        self._touch(now)
        attempt, request.attempt = request.attempt, None
        base = len(request.committed)
        request.answered = attempt.round
        request.commit([*(attempt.tokens[node] for node in ruling.path), *ruling.tokens])
        if ruling.rejection is not None:
            request.reject()
        verdict = _core.Verdict(
            request=request.number,
            round=wire_round(attempt.round),
            base=base,
            accepted_node=attempt.nodes[ruling.path[-1]] if ruling.path else 0,
            tokens=ruling.tokens,
            finish=ruling.finish,
            queue_us=queue_us,
            verify_us=verify_us,
            logprobs=ruling.logprobs,
            sparse=None if ruling.rejection is None else ruling.rejection.sparse,
            reused=ruling.reused,
            hint=ruling.hint,
        )
        if ruling.finish != _Finish.none:
            return [Send(verdict), *self._end_request(kept=True)]
        return [Send(verdict), *self._go_on(request, now)]

    def failed(self, ticket: int, code: _core.FaultCode, reason: str) -> list[Action]:
        """Takes the failure of ``Start`` or ``Verify``: the request ends, the session lives."""
        request = self._request
        if request is None or request.ticket != ticket:
            return []
        return [self._fault(request.number, code, reason), *self._end_request(kept=False)]

    def decline(self, ticket: int, reason: str, retry_after_ms: int) -> list[Action]:
        """Takes that ``Start`` found no room: the request ends before it began, the session lives."""
        request = self._request
        if request is None or request.ticket != ticket:
            return []
        self._request = None
        return [self._busy(request.number, reason, retry_after_ms)]

    def expire(self, now: float) -> list[Action]:
        """Ends a session that has been silent past its deadline, or has lasted too long. One whose work is
        queued or runs is not silent: it is waiting for this side.
        """
        if now < self.deadline:
            return []
        if now >= self._end:
            return self.close(f"open for {self._target.session_timeout:g} s: connect again")
        if self._request is not None and self._request.attempt is not None:
            self._touch(now)
            return []
        if self.phase is Phase.GREETING:
            return self.refuse(f"no Hello within {self._target.handshake_timeout:g} s")
        return self.close(f"idle for {self._target.idle_timeout:g} s")

    def close(self, reason: str) -> list[Action]:
        """Ends the session in good order, from this side."""
        if self.phase is Phase.CLOSED:
            return []
        self.phase = Phase.CLOSED
        return [*self._end_request(kept=True), Send(_core.Close(reason=reason)), HangUp(reason)]

    def lost(self) -> list[Action]:
        """The connection is gone: nothing can be sent, only freed."""
        self.phase = Phase.CLOSED
        return self._end_request(kept=True)

    # Messages.

    def _hello(self, hello: _core.Hello, now: float) -> list[Action]:
        if hello.version != _core.PROTOCOL_VERSION:
            return self._fail(
                _FaultCode.version,
                f"the edge speaks protocol {hello.version}, this cloud {_core.PROTOCOL_VERSION}: "
                "install matching versions",
            )
        if hello.tokenizer != self._target.fingerprint:
            return self._fail(_FaultCode.tokenizer, self._target.describe_mismatch(hello))
        if hello.resume and self._contexts is not None and self._contexts.resume(hello.resume):
            self._key = hello.resume
        if (reason := self._admit()) is not None:
            self.phase = Phase.CLOSED
            return [self._busy(0, reason, int(1000 * self._retry_after)), HangUp("busy")]
        self.phase = Phase.READY
        self._touch(now)
        return [Send(self._target.welcome(self._key))]

    def _open(self, message: _core.Open, now: float) -> list[Action]:
        if self._request is not None:
            reason = f"request {self._request.number} is still running: cancel it first"
            return [self._fault(message.request, _FaultCode.request, reason)]
        try:
            prompt = self._prompt_of(message)
        except PeerError as error:
            return self.refuse(str(error))
        if prompt is None:
            reason = f"no text that is kept for this session begins with the {message.held} tokens meant"
            return [self._fault(message.request, _FaultCode.gone, f"{reason}: send the whole prompt")]
        try:
            terms = self._target.terms(message, prompt)
        except UsageError as error:
            return [self._fault(message.request, _FaultCode.request, str(error))]
        self._tickets += 1
        bounds = Bounds(self._target.max_nodes, self._target.max_waiting)
        request = Request(message.request, self._tickets, terms, bounds, list(prompt), message.free_run)
        self._request = request
        return [Start(request.ticket, prompt, terms, now)]

    def _prompt_of(self, message: _core.Open) -> list[int] | None:
        """The whole prompt; None when what it builds upon is not kept."""
        rest = said_prompt(message, self._target.limits.max_prompt)
        if not message.held:
            return rest
        kept = self._contexts
        begins = None if kept is None else kept.beginning(message.held, message.held_digest)
        return None if begins is None else begins + rest

    def _draft(self, draft: _core.Draft, now: float) -> list[Action]:
        request = self._request
        if request is None or draft.request != request.number:
            return []
        round = round_after(request.newest, draft.round)
        if round is None:
            return []
        # A draft of 0 nodes asks for a plain step, or gives leave to one.
        if (wait := self._spend(max(1, len(draft.tokens)), now)) > 0:
            reason = f"more nodes in a second than this token may have verified: come back in {wait:.1f} s"
            return [self._busy(request.number, reason, math.ceil(1000 * wait)), *self._end_request(kept=True)]
        try:
            self._target.check_tokens("Draft.tokens", draft.tokens)
            if draft.resampled >= 0:
                self._target.check_tokens("Draft.resampled", [draft.resampled])
            request.take(draft, round, now)
        except PeerError as error:
            return self.refuse(str(error))
        except UsageError as error:
            fault = self._fault(request.number, _FaultCode.request, str(error))
            return [fault, *self._end_request(kept=False)]
        return self._go_on(request, now)

    def _cancel(self, message: _core.Cancel, now: float) -> list[Action]:
        request = self._request
        if request is None or message.request != request.number:
            return []
        verdict = _core.Verdict(
            request=request.number,
            round=wire_round(request.answered),
            base=len(request.committed),
            accepted_node=0,
            tokens=[],
            finish=_Finish.cancelled,
        )
        return [Send(verdict), *self._end_request(kept=True)]

    def _bye(self, message: _core.Close | _core.Fault, now: float) -> list[Action]:
        self.phase = Phase.CLOSED
        return [*self._end_request(kept=True), HangUp("the edge closed the session")]

    # Work.

    def _go_on(self, request: Request, now: float) -> list[Action]:
        """Starts the next piece of work, if there is any and none runs."""
        work = request.next_work(now)
        self.dropped_drafts += request.dropped
        request.dropped = 0
        return [] if work is None else [self._verify(request, *work)]

    def _verify(self, request: Request, attempt: Attempt, arrived: float) -> Verify | MoreTail:
        if attempt.more_tail:
            return MoreTail(request.ticket, arrived)
        committed = request.committed
        return Verify(
            ticket=request.ticket,
            base=len(committed),
            tip=committed[-1],
            tokens=attempt.tokens,
            parents=attempt.parents,
            arrived=arrived,
            weights=attempt.weights,
            resampled=attempt.resampled,
            finish=attempt.finish,
            hint=attempt.hint,
        )

    # Ends.

    def _end_request(self, *, kept: bool) -> list[Action]:
        request, self._request = self._request, None
        if request is None:
            return []
        return [Release(request.ticket, request.committed if kept else None)]

    def _fail(self, code: _core.FaultCode, reason: str) -> list[Action]:
        if self.phase is Phase.CLOSED:
            return []
        self.phase = Phase.CLOSED
        return [*self._end_request(kept=False), self._fault(0, code, reason), HangUp(reason)]

    def _fault(self, number: int, code: _core.FaultCode, reason: str) -> Send:
        return Send(_core.Fault(request=number, code=code, message=reason[: self._target.max_text]))

    def _busy(self, number: int, reason: str, retry_after_ms: int) -> Send:
        return Send(
            _core.Fault(request=number, code=_FaultCode.busy, message=reason, retry_after_ms=retry_after_ms)
        )

    def _touch(self, now: float) -> None:
        if self.phase is Phase.READY:
            self._deadline = now + self._target.idle_timeout


_HANDLERS: dict[tuple[Phase, type], Callable[[Session, Any, float], list[Action]]] = {
    (Phase.GREETING, _core.Hello): Session._hello,
    (Phase.GREETING, _core.Close): Session._bye,
    (Phase.READY, _core.Open): Session._open,
    (Phase.READY, _core.Draft): Session._draft,
    (Phase.READY, _core.Cancel): Session._cancel,
    (Phase.READY, _core.Close): Session._bye,
    (Phase.READY, _core.Fault): Session._bye,
}
"""What is accepted when. Anything else is a breach of the protocol."""
