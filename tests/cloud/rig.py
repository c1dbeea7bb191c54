"""A service whose scheduler runs when a test says so, and a client that speaks messages instead of bytes."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models

from acespec_edge import _core
from acespec_edge.keyring import Key
from acespec_edge.protocol import parents_from_offsets
from acespec_edge.token_bytes import BYTE_OF
from acespec_edge.vocabulary import Vocabulary
from cloud_stub.scheduler import Job, Units
from cloud_stub.service import Service, ServiceOptions
from cloud_stub.verifiers.base import Rows, Verifier
from cloud_stub.verifiers.scripted import ScriptedVerifier

GREEDY = _core.SamplingRules()


def tiny_vocabulary(size: int = 16, *, swap: bool = False) -> Vocabulary:
    """``size`` tokens of one byte each; ``swap`` exchanges the last two."""
    ids = list(range(size))
    if swap:
        ids[-1], ids[-2] = ids[-2], ids[-1]
    tokenizer = Tokenizer(
        models.BPE(vocab=dict(zip(itertools.islice(BYTE_OF, size), ids, strict=True)), merges=[])
    )
    tokenizer.decoder = decoders.ByteLevel()
    return Vocabulary.from_tokenizer_json(tokenizer.to_str())


def hashed_logits(size: int, seed: int = 0, sharpness: float = 2.0) -> Callable[[Sequence[int]], Rows]:
    """A target that depends on the last three tokens and on nothing else."""

    def logits_of(tokens: Sequence[int]) -> Rows:
        key = (seed, *(token + 1 for token in tokens[-3:]))
        return (sharpness * np.random.default_rng(key).standard_normal(size)).astype(np.float32)

    return logits_of


def plain_greedy(logits_of: Callable[[Sequence[int]], Rows], prompt: Sequence[int], count: int) -> list[int]:
    """What the target alone produces."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(logits_of(tokens))))
    return tokens[len(prompt) :]


class ManualScheduler:
    """Stands in for the scheduler: the same queue, without a thread and without time."""

    def __init__(self) -> None:
        self.queue: deque[Job] = deque()
        self.padded: list[int] = []

    @property
    def waiting(self) -> int:
        return len(self.queue)

    def submit(self, units: Units) -> Job:
        job = Job(units)
        self.queue.append(job)
        return job

    def cancel(self, job: Job) -> None:
        job.cancelled = True
        if job in self.queue:
            self.queue.remove(job)
            job.units.close()

    def pad(self, started: float, nodes: int) -> None:
        self.padded.append(nodes)

    def step(self) -> None:
        """Runs one unit."""
        job = self.queue.popleft()
        try:
            next(job.units)
        except StopIteration:
            return
        if not job.cancelled:
            self.queue.append(job)

    def run(self, limit: int = 10_000) -> None:
        """Runs until nothing is left; at most ``limit`` units."""
        for _ in range(limit):
            if not self.queue:
                return
            self.step()
        raise AssertionError(f"still busy after {limit} units")

    def close(self, timeout: float = 0.0) -> bool:
        self.queue.clear()
        return True


class Rig:
    """A service over ``verifier`` driven by hand."""

    def __init__(self, verifier: Verifier, **options: Any) -> None:
        self.service = Service(verifier, ServiceOptions(**options))
        self.service.scheduler.close()
        self.scheduler = ManualScheduler()
        self.service.scheduler = self.scheduler  # type: ignore[assignment]

    def client(self, *, greet: bool = True) -> Client:
        """A new connection, past its handshake unless told otherwise."""
        client = Client(self)
        if greet:
            client.say(self.hello())
            assert isinstance(client.next(), _core.Welcome)
        return client

    def hello(self, **changes: Any) -> _core.Hello:
        target = self.service.target
        fields = {
            "tokenizer": target.fingerprint,
            "vocabulary": target.vocabulary,
            "drafter": "tiny",
            "chunks": list(target.chunks),
        }
        return _core.Hello(**(fields | changes))


def scripted_rig(size: int = 16, *, max_context: int = 4096, seed: int = 0, **options: Any) -> Rig:
    """A rig over ``hashed_logits``."""
    target = ScriptedVerifier(hashed_logits(size, seed), tiny_vocabulary(size), max_context=max_context)
    return Rig(target, **options)


class Client:
    """One connection. Verdicts are appended to ``committed`` the way an edge would."""

    def __init__(self, rig: Rig, key: Key | None = None) -> None:
        self.rig = rig
        self.inbox: deque[Any] = deque()
        self.hung_up: str | None = None
        self.committed: list[int] = []
        self.next_node = 1
        self.nodes: dict[int, tuple[int, int, int]] = {}
        """Token, parent and its draft's base, by number."""
        self.connection = rig.service.connect(self._hear, self._end, key)

    def _hear(self, data: bytes) -> None:
        assert self.hung_up is None, "a message after the end"
        self.inbox.append(_core.decode(data))

    def _end(self, reason: str) -> None:
        self.hung_up = reason

    def say(self, message: Any) -> None:
        self.connection.receive(_core.encode(message))

    def next(self) -> Any:
        """The next message that has arrived."""
        assert self.inbox, "nothing arrived"
        return self.inbox.popleft()

    def begin(self) -> None:
        """Numbers nodes anew, for the next request."""
        self.next_node = 1
        self.nodes.clear()

    def open(self, prompt: Sequence[int], *, max_tokens: int = 1000, request: int = 1, **fields: Any) -> Any:
        """Starts a request and returns what comes back."""
        self.committed = list(prompt)
        self.begin()
        self.say(_core.Open(request=request, prompt=list(prompt), max_tokens=max_tokens, **fields))
        self.rig.scheduler.run()
        return self.take() if self.inbox else None

    def draft(self, round: int, tokens: Sequence[int], *, run: bool = True, **fields: Any) -> Any:
        """Sends a draft on everything committed so far unless ``base`` says otherwise, its nodes numbered on
        unless ``first_node`` says otherwise; returns the answer, if any.
        """
        self.send(round, tokens, **fields)
        if run:
            self.rig.scheduler.run()
        return self.take() if self.inbox else None

    def send(self, round: int, tokens: Sequence[int], **fields: Any) -> _core.Draft:
        """The draft alone; returns it."""
        fields = {
            "request": 1,
            "base": len(self.committed),
            "round": round,
            "tokens": list(tokens),
            "first_node": self.next_node,
        } | fields
        message = _core.Draft(**fields)
        first, offsets = message.first_node, message.parent_offsets
        for number, (token, parent) in enumerate(
            zip(tokens, parents_from_offsets(first, len(tokens), offsets), strict=True), first
        ):
            self.nodes[number] = (token, parent, message.base)
        self.next_node = max(self.next_node, first + len(tokens))
        self.say(message)
        return message

    def take(self) -> Any:
        """The next message; a verdict is applied."""
        message = self.next()
        if isinstance(message, _core.Verdict):
            assert message.base == len(self.committed)
            self.committed += self._path(message)
            self.committed += message.tokens
        return message

    def _path(self, verdict: _core.Verdict) -> list[int]:
        path: list[int] = []
        node, base = verdict.accepted_node, verdict.base
        while node:
            token, node, base = self.nodes[node]
            path.append(token)
        # What of the path lies above the verdict's base was committed before.
        return path[::-1][verdict.base - base :]


def expect_fault(client: Client, code: _core.FaultCode, *words: str, ends: bool) -> None:
    fault = client.next()
    assert isinstance(fault, _core.Fault), fault
    assert fault.code == code
    for word in words:
        assert word in fault.message
    assert (client.hung_up is not None) == ends
