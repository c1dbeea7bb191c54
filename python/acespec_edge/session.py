"""The edge's side of the protocol without I/O: calls and bytes in, bytes and events out. Time is an
argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acespec_edge import _core
from acespec_edge.errors import LinkError, PeerError, UsageError
from acespec_edge.faults import raise_fault
from acespec_edge.grammar_text import GrammarText
from acespec_edge.protocol import next_round
from acespec_edge.round_trip import RoundTrip
from acespec_edge.session_events import Committed, Event, Welcomed
from acespec_edge.session_state import RECEIVING, SENDING, State
from acespec_edge.stats import Counters
from acespec_edge.verdict_rules import (
    SentDraft,
    Terms,
    accepted_path,
    check_logprobs,
    check_sparse,
    check_tokens,
)

_Outgoing = _core.Hello | _core.Open | _core.Draft | _core.Cancel | _core.Close


class EdgeSession:
    """One connection's protocol state: one request at a time, one draft in flight at a time.

    Everything that arrives is checked against what was sent before any of it is used. Raises UsageError
    for a call that the state does not allow, PeerError for a message that the protocol does not allow.
    Not thread-safe.
    """

    def __init__(
        self, *, tokenizer: bytes, vocabulary: int, drafter: str, chunks: Sequence[int] = ()
    ) -> None:
        self._hello = _core.Hello(
            tokenizer=tokenizer, vocabulary=vocabulary, drafter=drafter, chunks=list(chunks)
        )
        self._vocabulary = vocabulary
        self._limits = _core.Limits()
        self.state = State.NEW
        self.welcome: _core.Welcome | None = None
        self.counters = Counters()
        self._round_trip = RoundTrip()
        self._request = 0
        self._terms = Terms(frozenset(), 0, vocabulary, 0)
        self._length = 0
        self._prompt_length = 0
        self._round = 0
        self._answered = 0
        self._next_node = 1
        self._in_flight: SentDraft | None = None
        self._cloud_runs_free = False
        self._rejected = False

    @property
    def rtt(self) -> float | None:
        """Smoothed round trip in seconds without the cloud's queue and verification; None before the
        first."""
        return self._round_trip.seconds

    @property
    def waiting(self) -> bool:
        """Whether a draft (or the Open) is still to be answered."""
        return self._in_flight is not None

    @property
    def committed(self) -> int:
        """Committed length of the request: prompt and output tokens."""
        return self._length

    def hello(self) -> bytes:
        """The first message."""
        return self._send(self._hello)

    def open(
        self,
        prompt: Sequence[int],
        rules: _core.SamplingRules,
        *,
        stop_ids: Sequence[int],
        max_tokens: int,
        at: float,
        free_run: bool = False,
        mode: _core.Mode = _core.Mode.coupled,
        logprobs: int = -1,
        grammar: GrammarText | None = None,
    ) -> bytes:
        """Starts the next request. ``at``: now, in the seconds of the clock that stamps arrivals."""
        request = self._request % 0xFFFF + 1
        message = _core.Open(
            request=request,
            prompt=list(prompt),
            rules=rules,
            stop_ids=list(stop_ids),
            max_tokens=max_tokens,
            free_run=free_run,
            logprobs=logprobs,
            grammar_kind=_core.Grammar.none if grammar is None else _core.Grammar[grammar.kind],
            grammar="" if grammar is None else grammar.text,
            mode=mode,
        )
        frame = self._send(message)
        self._request = request
        room = self.welcome.max_context - len(prompt) if self.welcome is not None else 0
        self._terms = Terms(frozenset(stop_ids), max_tokens, self._vocabulary, room, mode, logprobs)
        self.counters = Counters(bytes_up=len(frame))
        self._length = self._prompt_length = len(prompt)
        self._round = self._answered = 0
        self._next_node = 1
        self._cloud_runs_free = free_run
        self._rejected = False
        self._in_flight = SentDraft(0, 1, [], free_run, at, opening=True)
        return frame

    def draft(
        self,
        tokens: Sequence[int],
        *,
        at: float,
        free_run: bool = False,
        weights: Sequence[int] = (),
        resampled: int | None = None,
    ) -> bytes:
        """A chain below the last committed token.

        An empty one asks for one plain step; with ``free_run`` the cloud goes on by itself from there.
        Residual mode: ``weights`` of the tokens less 1; ``resampled``: the token drawn in place of the one
        that the last verdict rejected, committed in front of the chain.
        """
        if self._rejected != (resampled is not None):
            state = "was rejected and has to be" if self._rejected else "is the cloud's, and must not be"
            raise UsageError(f"draft on {self._length} tokens: the next one {state} resampled")
        drawn = _core.Draft().resampled if resampled is None else resampled
        chain = list(tokens)
        message = self._next_draft(tokens=chain, free_run=free_run, q=list(weights), resampled=drawn)
        sent = SentDraft(message.round, message.first_node, chain, free_run, at, resampled=resampled)
        return self._send_draft(message, sent)

    def more_samples(self, *, at: float) -> bytes:
        """Asks for more tail samples of the row that the last verdict brought."""
        if not self._rejected:
            raise UsageError("more samples: no row waits for a token to be drawn")
        message = self._next_draft(more_tail=True)
        sent = SentDraft(message.round, message.first_node, [], False, at, more_tail=True)
        return self._send_draft(message, sent)

    def _next_draft(self, **fields: Any) -> _core.Draft:
        if self._in_flight is not None:
            raise UsageError(f"draft of round {self._round + 1}: round {self._round} has no verdict yet")
        return _core.Draft(
            request=self._request,
            round=next_round(self._round),
            base=self._length,
            first_node=self._next_node,
            **fields,
        )

    def _send_draft(self, message: _core.Draft, sent: SentDraft) -> bytes:
        frame = self._send(message)
        self.counters.sent_draft(len(frame))
        self._in_flight = sent
        self._round = sent.round
        self._next_node += len(sent.tokens)
        self._length += len(sent.drawn)
        self._cloud_runs_free = self._cloud_runs_free or sent.free_run
        return frame

    def cancel(self) -> bytes:
        """Ends the running request early; its last verdict is still to come."""
        frame = self._send(_core.Cancel(request=self._request))
        self.counters.bytes_up += len(frame)
        return frame

    def close(self, reason: str) -> bytes:
        """The last message of the connection."""
        return self._send(_core.Close(reason=reason))

    def receive(self, data: bytes, at: float) -> Event:
        """Takes one message that arrived ``at``.

        Raises what a Fault says (UsageError: ours to fix, LinkError: busy, PeerError: the rest) unless it
        ends a cancelled request, LinkError when the cloud closes, PeerError when the message is malformed or
        not allowed here.
        """
        message = _core.decode(data, self._limits)
        following = RECEIVING.get((self.state, type(message)))
        if following is None:
            raise PeerError(
                f"the cloud sent {type(message).__name__} while this session is {self.state.value}"
            )
        if isinstance(message, _core.Verdict):
            event = self._verdict(message, len(data), at)
            self.state = following if event.finish == _core.Finish.none else State.IDLE
            return event
        if isinstance(message, _core.Fault):
            return self._failed(message, at)
        self.state = following
        if isinstance(message, _core.Welcome):
            return self._welcomed(message)
        if isinstance(message, _core.Close):
            raise LinkError(f"the cloud closed the connection: {message.reason or 'no reason given'}")
        raise PeerError(f"the cloud sent {type(message).__name__}, which only an edge sends")

    def _send(self, message: _Outgoing) -> bytes:
        following = SENDING.get((self.state, type(message)))
        if following is None:
            raise UsageError(
                f"{type(message).__name__} cannot be sent while this session is {self.state.value}"
            )
        frame = _core.encode(message, self._limits)
        self.state = following
        return frame

    def _welcomed(self, welcome: _core.Welcome) -> Welcomed:
        if welcome.version != _core.PROTOCOL_VERSION:
            self.state = State.CLOSED
            raise PeerError(
                f"the cloud speaks protocol {welcome.version}, this device {_core.PROTOCOL_VERSION}: "
                "install matching versions"
            )
        self.welcome = welcome
        return Welcomed(welcome)

    def _failed(self, fault: _core.Fault, at: float) -> Committed:
        """A fault of a cancelled request is its end. All others raise."""
        cancelling = self.state is State.CANCELLING
        running = self._request if cancelling or self.state is State.RUNNING else 0
        if fault.request not in (0, running):
            raise PeerError(f"fault of request {fault.request} while this session is {self.state.value}")
        self._in_flight = None
        self.state = State.CLOSED if fault.request == 0 else State.IDLE
        if cancelling and fault.request != 0:
            return Committed([], 0, _core.Finish.cancelled, at)
        raise_fault(fault)

    def _verdict(self, verdict: _core.Verdict, size: int, at: float) -> Committed:
        if verdict.request != self._request:
            raise PeerError(f"verdict for request {verdict.request} while request {self._request} is running")
        if verdict.base != self._length:
            raise PeerError(f"verdict on base {verdict.base}: {self._length} tokens are committed")
        sent = self._answers(verdict)
        path = accepted_path(sent, verdict)
        tokens = path + list(verdict.tokens)
        rejected = verdict.sparse is not None
        check_sparse(sent, verdict, len(path), self._terms)
        # What a draft resampled is committed by it, and accounted for with its verdict.
        whole = [*(sent.drawn if sent is not None else []), *tokens]
        generated = self._length - self._prompt_length - len(whole) + len(tokens)
        check_tokens(whole, verdict.finish, self._terms, generated, rejected=rejected)
        check_logprobs(verdict.logprobs, len(whole), self._terms)
        if verdict.finish == _core.Finish.cancelled and self.state is not State.CANCELLING:
            raise PeerError("verdict ends a request as cancelled that was not cancelled")
        self._length += len(tokens)
        self._rejected = rejected
        self._count(verdict, sent, len(path), len(whole), size, at)
        if sent is None and self._in_flight is not None:
            self._in_flight.since += tokens
            if self._in_flight.rest() is None:
                self._in_flight = None
        if verdict.finish != _core.Finish.none:
            self._in_flight = None
        return Committed(tokens, len(path), verdict.finish, at, verdict.logprobs, verdict.sparse)

    def _answers(self, verdict: _core.Verdict) -> SentDraft | None:
        """The draft in flight when the verdict answers it; None for one of a free-running or cancelled
        request."""
        sent = self._in_flight
        if sent is not None and verdict.round == sent.round:
            self._in_flight = None
            self._answered = sent.round
            self._cloud_runs_free = sent.free_run
            return sent
        ends = verdict.finish == _core.Finish.cancelled and self.state is State.CANCELLING
        if verdict.round != self._answered or not (self._cloud_runs_free or ends):
            expected = f"round {sent.round}" if sent is not None else "no verdict"
            raise PeerError(f"verdict of round {verdict.round}: {expected} was expected")
        return None

    def _count(
        self,
        verdict: _core.Verdict,
        sent: SentDraft | None,
        accepted: int,
        committed: int,
        size: int,
        at: float,
    ) -> None:
        counters = self.counters
        counters.got_verdict(size, 1e-6 * verdict.verify_us)
        if sent is None:
            return
        if not sent.opening and not sent.free_run:
            counters.ended_round(accepted, committed)
        sample = max(0.0, at - sent.at - 1e-6 * (verdict.queue_us + verdict.verify_us))
        # An Open carries the whole prompt, so its time only stands in until a draft has been measured.
        self._round_trip.measured(sample, rough=sent.opening)
        counters.rtt = self.rtt or 0.0
