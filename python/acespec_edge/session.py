"""The edge's side of the protocol without I/O: calls and bytes in, bytes and events out. Time is an
argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acespec_edge import _core
from acespec_edge.errors import LinkError, PeerError, UsageError
from acespec_edge.faults import raise_fault
from acespec_edge.grammar_text import GrammarText
from acespec_edge.in_flight import Answered, InFlight, SentDraft, committed_by
from acespec_edge.known_contexts import KnownContexts
from acespec_edge.opening import Opening
from acespec_edge.prefix import text_of
from acespec_edge.protocol import chain_parents, offsets_from_parents, wire_round
from acespec_edge.session_events import Committed, Event, Repeated, Welcomed
from acespec_edge.session_state import RECEIVING, SENDING, State
from acespec_edge.stats import Counters
from acespec_edge.verdict_rules import Terms, check_hint, check_logprobs, check_sparse, check_tokens

_Outgoing = _core.Hello | _core.Open | _core.Draft | _core.Cancel | _core.Close


class EdgeSession:
    """One connection's protocol state: one request at a time, several drafts of it in flight (in residual
    mode one).

    Everything that arrives is checked against what was sent before any of it is used. Raises UsageError
    for a call that the state does not allow, PeerError for a message that the protocol does not allow.
    Not thread-safe.
    """

    def __init__(
        self,
        *,
        tokenizer: bytes,
        vocabulary: int,
        drafter: str,
        chunks: Sequence[int] = (),
        contexts: KnownContexts | None = None,
    ) -> None:
        """``contexts``: of the sessions before, whose last this one asks to go on with; it keeps them up to
        date for the next.
        """
        self._contexts = KnownContexts() if contexts is None else contexts
        self._hello = _core.Hello(
            tokenizer=tokenizer,
            vocabulary=vocabulary,
            drafter=drafter,
            chunks=list(chunks),
            resume=self._contexts.key,
        )
        self._vocabulary = vocabulary
        self._limits = _core.Limits()
        self.state = State.NEW
        self.welcome: _core.Welcome | None = None
        self.counters = Counters()
        self._request = 0
        self._terms = Terms(frozenset(), 0, vocabulary, 0)
        self._prompt_length = 0
        self._in_flight: InFlight | None = None
        self._opening: Opening | None = None
        """Until the first verdict."""

    @property
    def owed(self) -> bool:
        """Whether a verdict will come that a draft, or the Open, asked for."""
        return self.state is State.RUNNING and self._in_flight is not None and self._in_flight.owed

    @property
    def runs_free(self) -> bool:
        """Whether the newest draft, or the Open, lets the cloud go on by itself."""
        return self._in_flight is not None and self._in_flight.runs_free

    @property
    def held(self) -> int:
        """Nodes that the cloud may hold."""
        return 0 if self._in_flight is None else len(self._in_flight.mirror)

    @property
    def next_node(self) -> int:
        """Number of the next draft's first node; nodes of a request are numbered from 1 in the order in which
        they are sent.
        """
        return 1 if self._in_flight is None else self._in_flight.mirror.next_node

    @property
    def committed(self) -> int:
        """Committed length of the request: prompt and output tokens."""
        return 0 if self._in_flight is None else self._in_flight.mirror.length

    def hello(self) -> bytes:
        """The first message."""
        return self._send(self._hello)

    def taken(self) -> None:
        """This connection is the one in use: what the cloud keeps is of its session from now on."""
        assert self.welcome is not None
        self._contexts.welcomed(self.welcome.session, self.welcome.keep_s)

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
        """Starts the next request; of the prompt goes what the cloud does not keep. ``at``: now, in the
        seconds of the clock that stamps arrivals.
        """
        request = self._request % 0xFFFF + 1
        text = text_of(prompt)
        message = _core.Open(
            request=request,
            rules=rules,
            stop_ids=list(stop_ids),
            max_tokens=max_tokens,
            free_run=free_run,
            logprobs=logprobs,
            grammar_kind=_core.Grammar.none if grammar is None else _core.Grammar[grammar.kind],
            grammar="" if grammar is None else grammar.text,
            mode=mode,
        )
        opening = Opening(text, self._contexts.held(text, at), message)
        frame = self._send(opening.message)
        self._contexts.begin(text, at)
        self._opening = opening
        self._request = request
        room = self.welcome.max_context - len(prompt) if self.welcome is not None else 0
        self._terms = Terms(frozenset(stop_ids), max_tokens, self._vocabulary, room, mode, logprobs)
        self.counters = Counters(bytes_up=len(frame))
        self._prompt_length = len(prompt)
        sent = SentDraft(0, free_run, at, len(frame), asks=len(prompt), opening=True)
        self._in_flight = InFlight(len(prompt), sent)
        return frame

    def draft(
        self,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        *,
        at: float,
        free_run: bool = False,
        weights: Sequence[int] = (),
        resampled: int | None = None,
        wants_hint: bool = False,
    ) -> bytes:
        """More nodes for the cloud's tree, on everything committed so far.

        ``parents``: of each node, its number: 0 (the last committed token), that of a node in flight, or of
        one before it in this draft, numbered on from ``next_node``; None: a chain below the last committed
        token. No nodes ask for one plain step if the cloud has none either; with ``free_run`` it goes on by
        itself whenever it has none. Residual mode takes a chain at a time: ``weights`` of the tokens less 1;
        ``resampled``: the token drawn in place of the one that the last verdict rejected, committed in front
        of the chain. ``wants_hint``: the verdict may say how the text goes on, by the cloud's own guess.

        Raises UsageError for an unknown parent or one more than 255 numbers back, and for more nodes or
        drafts than the cloud lets wait.
        """
        flight = self._request_in_flight()
        if flight.rejected != (resampled is not None):
            state = "was rejected and has to be" if flight.rejected else "is the cloud's, and must not be"
            raise UsageError(f"draft on {self.committed} tokens: the next one {state} resampled")
        first = flight.mirror.next_node
        above = chain_parents(first, len(tokens)) if parents is None else list(parents)
        self._check_room(flight, len(tokens))
        flight.check_parents(len(tokens), above)
        message = self._next_draft(
            flight,
            tokens=list(tokens),
            parent_offsets=offsets_from_parents(first, above),
            free_run=free_run,
            q=list(weights),
            resampled=_core.Draft().resampled if resampled is None else resampled,
            wants_hint=wants_hint,
        )
        frame = self._send_draft(message)
        drawn = () if resampled is None else (resampled,)
        asks = None if tokens else self.committed + len(drawn)
        sent = SentDraft(flight.newest + 1, free_run, at, len(frame), asks=asks, drawn=drawn)
        flight.send(sent, first, tokens, above)
        return frame

    def more_samples(self, *, at: float) -> bytes:
        """Asks for more tail samples of the row that the last verdict brought."""
        flight = self._request_in_flight()
        if not flight.rejected:
            raise UsageError("more samples: no row waits for a token to be drawn")
        self._check_room(flight, 0)
        frame = self._send_draft(self._next_draft(flight, more_tail=True))
        sent = SentDraft(flight.newest + 1, False, at, len(frame), asks=self.committed, more_tail=True)
        flight.send(sent, flight.mirror.next_node, [], [])
        return frame

    def _request_in_flight(self) -> InFlight:
        if self._in_flight is None or self.state is not State.RUNNING:
            raise UsageError(f"Draft cannot be sent while this session is {self.state.value}")
        return self._in_flight

    def _check_room(self, flight: InFlight, nodes: int) -> None:
        assert self.welcome is not None
        flight.check_room(nodes, self.welcome.max_nodes, alone=self._terms.mode == _core.Mode.residual)

    def _next_draft(self, flight: InFlight, **fields: Any) -> _core.Draft:
        return _core.Draft(
            request=self._request,
            round=wire_round(flight.newest + 1),
            base=flight.mirror.length,
            first_node=flight.mirror.next_node,
            **fields,
        )

    def _send_draft(self, message: _core.Draft) -> bytes:
        frame = self._send(message)
        if self._opening is not None:
            self._opening.followed_by(frame)
        self.counters.sent_draft(len(frame), len(message.tokens))
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
            self.state = following
            if event.finish != _core.Finish.none:
                self._over(State.IDLE)
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

    def _failed(self, fault: _core.Fault, at: float) -> Committed | Repeated:
        """A fault of a cancelled request is its end, and one that says that the cloud does not keep what the
        Open builds upon has it sent whole. All others raise.
        """
        cancelling = self.state is State.CANCELLING
        running = self._request if cancelling or self.state is State.RUNNING else 0
        if fault.request not in (0, running):
            raise PeerError(f"fault of request {fault.request} while this session is {self.state.value}")
        if fault.code == _core.FaultCode.gone and self.state is State.RUNNING and fault.request != 0:
            return self._repeated(fault, at)
        # Of a request that has begun and that a busy cloud ends, what was committed is kept there.
        begun = running and self._opening is None
        if running and not (begun and fault.code == _core.FaultCode.busy):
            self._contexts.fail()
        self._over(State.CLOSED if fault.request == 0 else State.IDLE)
        if cancelling and fault.request != 0:
            return Committed([], 0, _core.Finish.cancelled, at)
        raise_fault(fault)

    def _repeated(self, fault: _core.Fault, at: float) -> Repeated:
        again = None if self._opening is None else self._opening.whole()
        if again is None or self._in_flight is None:
            raise PeerError(f"the cloud reports a text as gone that was not built upon: {fault.message}")
        message, drafts = again
        frames = [_core.encode(message, self._limits), *drafts]
        self._contexts.only_newest()
        sizes = [len(frame) for frame in frames]
        self._in_flight.repeat(sizes, at)
        self.counters.bytes_up += sum(sizes)
        return Repeated(frames)

    def _over(self, state: State) -> None:
        self.state = state
        self._opening = None
        if self._in_flight is not None:
            self._in_flight.end()

    def _verdict(self, verdict: _core.Verdict, size: int, at: float) -> Committed:
        flight, terms = self._in_flight, self._terms
        assert flight is not None
        if verdict.request != self._request:
            raise PeerError(f"verdict for request {verdict.request} while request {self._request} is running")
        if verdict.reused and verdict.reused >= self._prompt_length:
            raise PeerError(f"verdict reuses {verdict.reused} of {self._prompt_length} tokens of the prompt")
        if verdict.base != self.committed:
            raise PeerError(f"verdict on base {verdict.base}: {self.committed} tokens are committed")
        cancelled = verdict.finish == _core.Finish.cancelled
        if cancelled and self.state is not State.CANCELLING:
            raise PeerError("verdict ends a request as cancelled that was not cancelled")
        generated = self.committed - self._prompt_length
        answered = flight.ended_by(verdict.round) if cancelled else flight.answered_by(verdict.round)
        path = answered.path(verdict.accepted_node)
        tokens = path + list(verdict.tokens)
        rejected = verdict.sparse is not None
        check_sparse(answered, verdict, len(path), terms)
        # What a draft resampled is committed by it, and accounted for with its verdict.
        whole = [*(answered.sent.drawn if answered.sent is not None else ()), *tokens]
        check_tokens(whole, verdict.finish, terms, generated - len(whole) + len(tokens), rejected=rejected)
        check_logprobs(verdict.logprobs, len(whole), terms)
        check_hint(verdict.hint, terms)
        room = min(terms.max_tokens, terms.room) - generated
        event = committed_by(verdict, answered, tokens, room=room, size=size, at=at)
        flight.commit(answered, tokens, rejected=rejected)
        self._contexts.grow(whole, at)
        if self._opening is not None:
            self._opening = None
            self.counters.reused = verdict.reused
        self._count(event, answered, len(whole))
        return event

    def _count(self, event: Committed, answered: Answered, committed: int) -> None:
        self.counters.got_verdict(event.bytes_down, event.verify)
        sent = answered.sent
        if event.nodes > 0 or (sent is not None and not sent.opening and not sent.free_run):
            self.counters.ended_round(event.accepted, committed)
