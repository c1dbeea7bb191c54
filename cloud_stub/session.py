"""The server's half of a session, without I/O: decoded messages, rulings and the time go in, actions come
out.

One session is one connection; it runs one request at a time, and of a request at most one piece of model
work at a time. The committed tokens held here are the truth for both sides.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from acespec_edge import _core
from acespec_edge.errors import UsageError
from acespec_edge.protocol import is_newer, parents_from_offsets
from cloud_stub.actions import Action, HangUp, Message, MoreTail, Release, Send, Start, Verify
from cloud_stub.fitting import check_mode, fitted
from cloud_stub.judge import Ruling, Terms
from cloud_stub.pending import Attempt, PendingDraft
from cloud_stub.target import Target

_Finish = _core.Finish
_FaultCode = _core.FaultCode


class Phase(enum.Enum):
    """Where the connection is."""

    GREETING = "greeting"
    READY = "ready"
    CLOSED = "closed"


@dataclass(slots=True)
class _Request:
    """A running request. ``attempt``: the work in progress, if any. ``last_round``: of the newest draft
    received; ``answered_round``: of the newest one answered, which is what verdicts that answer none
    repeat. ``rejected``: in residual mode the edge has to draw the next token.
    """

    number: int
    ticket: int
    terms: Terms
    committed: list[int]
    free_run: bool
    last_round: int = 0
    answered_round: int = 0
    waiting: list[PendingDraft] = field(default_factory=list)
    attempt: Attempt | None = None
    rejected: bool = False


class Session:
    """Not thread-safe. Every method returns the actions to carry out, in order; time is in monotonic
    seconds.
    """

    def __init__(self, target: Target, session_key: bytes, now: float) -> None:
        self.phase = Phase.GREETING
        self.dropped_drafts = 0
        self._target = target
        self._key = session_key
        self._deadline = now + target.handshake_timeout
        self._request: _Request | None = None
        self._tickets = 0

    @property
    def deadline(self) -> float:
        """When ``expire`` is due unless something happens before."""
        return self._deadline

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
        request.answered_round = attempt.round
        request.committed += [attempt.tokens[node] for node in ruling.path]
        request.committed += ruling.tokens
        request.rejected = ruling.rejection is not None
        verdict = _core.Verdict(
            request=request.number,
            round=attempt.round,
            base=base,
            accepted_node=attempt.wire_number(ruling.path[-1]) if ruling.path else 0,
            tokens=ruling.tokens,
            finish=ruling.finish,
            queue_us=queue_us,
            verify_us=verify_us,
            logprobs=ruling.logprobs,
            sparse=None if ruling.rejection is None else ruling.rejection.sparse,
        )
        if ruling.finish != _Finish.none:
            return [Send(verdict), *self._end_request()]
        return [Send(verdict), *self._go_on(request, now)]

    def failed(self, ticket: int, code: _core.FaultCode, reason: str) -> list[Action]:
        """Takes the failure of ``Start`` or ``Verify``: the request ends, the session lives."""
        request = self._request
        if request is None or request.ticket != ticket:
            return []
        return [self._fault(request.number, code, reason), *self._end_request()]

    def decline(self, ticket: int, reason: str, retry_after_ms: int) -> list[Action]:
        """Takes that ``Start`` found no room: the request ends before it began, the session lives."""
        request = self._request
        if request is None or request.ticket != ticket:
            return []
        self._request = None
        fault = _core.Fault(
            request=request.number, code=_FaultCode.busy, message=reason, retry_after_ms=retry_after_ms
        )
        return [Send(fault)]

    def expire(self, now: float) -> list[Action]:
        """Ends a session that has been silent past its deadline; one whose work is queued or runs is waiting
        for this side.
        """
        if now < self._deadline:
            return []
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
        return [*self._end_request(), Send(_core.Close(reason=reason)), HangUp(reason)]

    def lost(self) -> list[Action]:
        """The connection is gone: nothing can be sent, only freed."""
        self.phase = Phase.CLOSED
        return self._end_request()

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
        self.phase = Phase.READY
        self._touch(now)
        return [Send(self._target.welcome(self._key))]

    def _open(self, message: _core.Open, now: float) -> list[Action]:
        if self._request is not None:
            reason = f"request {self._request.number} is still running: cancel it first"
            return [self._fault(message.request, _FaultCode.request, reason)]
        prompt = message.prompt
        try:
            terms = self._target.terms(message, prompt)
        except UsageError as error:
            return [self._fault(message.request, _FaultCode.request, str(error))]
        self._tickets += 1
        request = _Request(message.request, self._tickets, terms, list(prompt), message.free_run)
        request.attempt = Attempt(0, 1, [], [])
        self._request = request
        return [Start(request.ticket, prompt, terms, now)]

    def _draft(self, draft: _core.Draft, now: float) -> list[Action]:
        request = self._request
        if (
            request is None
            or draft.request != request.number
            or not is_newer(draft.round, request.last_round)
        ):
            return []
        committed, prompt = len(request.committed), request.terms.prompt_length
        if not prompt <= draft.base <= committed:
            return self.refuse(f"Draft.base is {draft.base}: {prompt} to {committed} tokens are committed")
        try:
            parents = parents_from_offsets(len(draft.tokens), draft.parent_offsets)
            self._target.check_tokens("Draft.tokens", draft.tokens)
            check_mode(draft, request.terms.mode)
            if draft.resampled >= 0:
                self._target.check_tokens("Draft.resampled", [draft.resampled])
        except (UsageError, ValueError) as error:
            return [self._fault(request.number, _FaultCode.request, str(error)), *self._end_request()]
        if len(request.waiting) >= self._target.max_waiting:
            return self.refuse(f"more than {self._target.max_waiting} drafts are waiting for a verdict")
        request.last_round = draft.round
        request.free_run = draft.free_run
        request.waiting.append(
            PendingDraft(
                round=draft.round,
                base=draft.base,
                first_node=draft.first_node,
                tokens=list(draft.tokens),
                parents=parents,
                arrived=now,
                weights=[weight + 1 for weight in draft.q],
                resampled=draft.resampled if draft.resampled >= 0 else None,
                more_tail=draft.more_tail,
            )
        )
        return self._go_on(request, now)

    def _cancel(self, message: _core.Cancel, now: float) -> list[Action]:
        request = self._request
        if request is None or message.request != request.number:
            return []
        verdict = _core.Verdict(
            request=request.number,
            round=request.answered_round,
            base=len(request.committed),
            accepted_node=0,
            tokens=[],
            finish=_Finish.cancelled,
        )
        return [Send(verdict), *self._end_request()]

    def _bye(self, message: _core.Close | _core.Fault, now: float) -> list[Action]:
        self.phase = Phase.CLOSED
        return [*self._end_request(), HangUp("the edge closed the session")]

    # Work.

    def _go_on(self, request: _Request, now: float) -> list[Action]:
        """Starts the next piece of work, if there is any and none runs."""
        if request.attempt is not None:
            return []
        while request.waiting:
            draft = request.waiting.pop(0)
            try:
                attempt = fitted(draft, request.committed, request.terms, rejected=request.rejected)
            except UsageError as error:
                return [
                    self._fault(request.number, _FaultCode.request, str(error)),
                    *self._end_request(),
                ]
            if attempt is not None:
                return [self._verify(request, attempt, draft.arrived)]
            self.dropped_drafts += 1
        if request.free_run and not request.rejected:
            return [self._verify(request, Attempt(request.answered_round, 1, [], []), now)]
        return []

    def _verify(self, request: _Request, attempt: Attempt, arrived: float) -> Verify | MoreTail:
        request.attempt = attempt
        if attempt.more_tail:
            return MoreTail(request.ticket, arrived)
        if attempt.resampled is not None:
            request.committed.append(attempt.resampled)
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
        )

    # Ends.

    def _end_request(self) -> list[Action]:
        request, self._request = self._request, None
        return [] if request is None else [Release(request.ticket)]

    def _fail(self, code: _core.FaultCode, reason: str) -> list[Action]:
        if self.phase is Phase.CLOSED:
            return []
        self.phase = Phase.CLOSED
        return [*self._end_request(), self._fault(0, code, reason), HangUp(reason)]

    def _fault(self, number: int, code: _core.FaultCode, reason: str) -> Send:
        return Send(_core.Fault(request=number, code=code, message=reason[: self._target.max_text]))

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
