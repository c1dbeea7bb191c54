"""The cloud in virtual time: real sessions and the real judge over a recorded target."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

import numpy as np

from acespec_edge import _core
from acespec_edge.errors import UsageError
from acespec_edge.simulate.clock import World
from acespec_edge.simulate.profiles import CloudProfile, HeadProfile
from acespec_edge.simulate.runner import FINGERPRINT, MAX_NODES
from acespec_edge.simulate.trace import Record, Trace
from cloud_stub.actions import Action, HangUp, MoreTail, Release, Send, Start, Verify
from cloud_stub.continuation import Continuation, SelfDrafting
from cloud_stub.judge import Ruling, Terms
from cloud_stub.session import Session
from cloud_stub.target import Target
from cloud_stub.verifiers.base import Handle, Rows
from cloud_stub.work import Work

_PREFILL_CHUNK: Final = 256
"""Prompt tokens of one turn at the model, as a service has it by default."""

Job = Iterator[float]
"""A piece of work: yields the seconds of each unit, and is resumed when they have passed."""


class ReplayHandle:
    """See ``Handle``: a target that goes on with one record's text. Rows off the text are never looked at."""

    def __init__(self, record: Record, vocabulary: int) -> None:
        self._record = record
        self._vocabulary = vocabulary
        # Any row is a window of it: the token's logit is 0, every other one -inf.
        self._strip = np.full(2 * vocabulary, -np.inf, np.float32)
        self._strip[vocabulary] = 0.0
        self.length = 0

    def prefill(self, tokens: Sequence[int]) -> Rows:
        """See ``Handle.prefill``."""
        self.length += len(tokens)
        return self._rows([0])

    def verify(self, tip: int, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        """See ``Handle.verify``."""
        depths = [1]
        for parent in parents:
            depths.append(depths[parent + 1] + 1)
        return self._rows(depths)

    def keep(self, path: Sequence[int]) -> None:
        """See ``Handle.keep``."""
        self.length += 1 + len(path)

    def close(self) -> None:
        """See ``Handle.close``."""

    def _rows(self, depths: Sequence[int]) -> Rows:
        """The row that follows ``depth`` tokens after the context."""
        text, first = self._record.text, self.length - len(self._record.prompt)
        chosen = (text[max(0, min(first + depth, len(text) - 1))] for depth in depths)
        rows = [self._strip[self._vocabulary - token :][: self._vocabulary] for token in chosen]
        # A list of rows, which is all that judges ask of a matrix.
        return cast(Rows, rows)


class ReplayProposer:
    """See ``Proposer``: a head that knows the record's text, and errs by a profile. Whether it does at a
    place follows from the record's seed and the place.
    """

    def __init__(self, record: Record, profile: HeadProfile, vocabulary: int) -> None:
        self.longest = profile.block
        self.blocks = 0
        self._record = record
        self._profile = profile
        self._vocabulary = vocabulary

    def propose(
        self, handle: Handle, tip: int, position: int, rules: _core.SamplingRules, count: int, least: float
    ) -> list[int]:
        """See ``Proposer.propose``."""
        self.blocks += 1
        first = position - len(self._record.prompt)
        tokens = []
        for place, token in enumerate(self._record.text[first : first + count], first):
            right = random.Random((self._record.seed << 32) + place).random() < self._profile.acceptance
            tokens.append(token if right else (token + 1) % self._vocabulary)
        return tokens


class VirtualCloud:
    """One worker that serves all connections, unit by unit in order of arrival as ``Scheduler`` does."""

    def __init__(self, world: World, trace: Trace, profile: CloudProfile) -> None:
        self.world = world
        self.profile = profile
        self.busy = 0.0
        self.forwards = 0
        self.verified_nodes = 0
        self.sampler = _core.Sampler(trace.vocabulary)
        self.vocabulary = trace.vocabulary
        longest = max(len(record.prompt) + len(record.text) for record in trace.records)
        self.target = Target(
            name=trace.target,
            vocabulary=trace.vocabulary,
            fingerprint=FINGERPRINT,
            chunks=(),
            max_context=longest + 1,
            max_nodes=MAX_NODES,
        )
        self._records = {(tuple(record.prompt), record.seed): record for record in trace.records}
        self._queue: deque[tuple[Job, float]] = deque()
        self._working = False

    def connect(self, send: Callable[[bytes], None]) -> VirtualConnection:
        """Takes a connection in; ``send`` takes what goes down to the edge."""
        return VirtualConnection(self, send)

    def record_of(self, start: Start) -> Record:
        """What a request is answered with. Raises UsageError when nothing was recorded for it."""
        try:
            return self._records[tuple(start.prompt), start.terms.rules.seed]
        except KeyError:
            raise UsageError("no answer to this prompt was recorded") from None

    def submit(self, job: Job) -> None:
        """Queues a job, to its end or until it is closed."""
        self._queue_next(job)
        self._work()

    def count_forward(self, nodes: int) -> None:
        """Counts one forward of the target."""
        self.forwards += 1
        self.verified_nodes += nodes

    def _queue_next(self, job: Job) -> None:
        """Queues the job's next unit, if it has one."""
        seconds = next(job, None)
        if seconds is not None:
            self._queue.append((job, seconds))

    def _work(self) -> None:
        if not self._working and self._queue:
            self._working = True
            job, seconds = self._queue.popleft()
            self.busy += seconds
            self.world.at(self.world() + seconds, lambda: self._done(job))

    def _done(self, job: Job) -> None:
        self._working = False
        self._queue_next(job)
        self._work()


class VirtualConnection:
    """Carries out what one session decides, as ``Connection`` does."""

    def __init__(self, cloud: VirtualCloud, send: Callable[[bytes], None]) -> None:
        self._cloud = cloud
        self._send = send
        self._session = Session(cloud.target, bytes(16), cloud.world())
        self._work: dict[int, Work | None] = {}
        self._head: ReplayProposer | None = None

    def receive(self, data: bytes) -> None:
        """See ``Peer.receive``."""
        message = _core.decode(data, self._cloud.target.limits)
        self._carry_out(self._session.receive(message, self._cloud.world()))

    def lost(self) -> None:
        """See ``Peer.lost``."""
        self._carry_out(self._session.lost())

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(message):
                    self._send(_core.encode(message, self._cloud.target.limits))
                case Start():
                    self._work[action.ticket] = None
                    self._cloud.submit(self._prefill(action))
                case Verify() | MoreTail():
                    self._cloud.submit(self._rule(action))
                case Release(ticket, _):
                    self._work.pop(ticket, None)
                case HangUp():
                    pass

    def _prefill(self, start: Start) -> Job:
        cloud = self._cloud
        try:
            record = cloud.record_of(start)
            handle = ReplayHandle(record, cloud.vocabulary)
            going_on = self._continuation(record, start.terms)
            work = Work(handle, cloud.sampler, start.terms, start.prompt, None, going_on)
        except UsageError as error:
            self._carry_out(self._session.failed(start.ticket, _core.FaultCode.request, str(error)))
            return
        forward = 0.0
        for first in range(0, len(start.prompt), _PREFILL_CHUNK):
            chunk = start.prompt[first : first + _PREFILL_CHUNK]
            seconds = cloud.profile.prefill_seconds(len(chunk))
            yield seconds
            if start.ticket not in self._work:
                return
            forward += seconds
            rows = work.prefill(chunk)
        cloud.count_forward(0)
        self._work[start.ticket] = work
        self._report(start, work.first(rows), forward)

    def _continuation(self, record: Record, terms: Terms) -> Continuation | None:
        profile = self._cloud.profile.head
        if profile is None:
            return None
        self._head = ReplayProposer(record, profile, self._cloud.vocabulary)
        shared = SelfDrafting(self._head, profile.per_token)
        return Continuation(shared, terms.rules, self._cloud.target.max_nodes - 1)

    def _rule(self, asked: Verify | MoreTail) -> Job:
        """What the ruling is decides how long it takes; no one sees it before."""
        cloud, work = self._cloud, self._work.get(asked.ticket)
        if work is None:
            return
        before = 0 if self._head is None else self._head.blocks
        forwards = isinstance(asked, Verify) and asked.finish == _core.Finish.none
        ruling = work.verify(asked) if isinstance(asked, Verify) else work.more_samples()
        nodes = ruling.own_nodes + (len(asked.tokens) if isinstance(asked, Verify) else 0)
        seconds = cloud.profile.seconds(nodes) if forwards else 0.0
        if self._head is not None and cloud.profile.head is not None:
            seconds += cloud.profile.head.block_ms / 1e3 * (self._head.blocks - before)
        yield seconds
        if asked.ticket not in self._work:
            return
        if forwards:
            cloud.count_forward(nodes)
        self._report(asked, ruling, seconds)

    def _report(self, asked: Start | Verify | MoreTail, ruling: Ruling, forward: float) -> None:
        now = self._cloud.world()
        queued = max(0.0, now - asked.arrived - forward)
        self._carry_out(self._session.ruled(asked.ticket, ruling, _us(queued), _us(forward), now))


def _us(seconds: float) -> int:
    return min(round(seconds * 1e6), 0xFFFFFFFF)
