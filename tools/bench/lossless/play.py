"""An edge and a cloud in this thread, joined by the real protocol: the native drafter, both sessions, every
message encoded and decoded, the judge. Only the models are stand-ins, and the network is a queue.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from acespec_edge import _core
from acespec_edge.session import EdgeSession
from acespec_edge.vocabulary import Vocabulary
from cloud_stub.scheduler import Job, Units
from cloud_stub.service import Service
from cloud_stub.verifiers.base import Rows, Verifier
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tools.bench.lossless.enumeration import LogitsOf

SIZE: Final = 16
PADDING: Final = 4
"""Columns of the target's logits past the vocabulary; they are the largest of every row."""

_CONTEXT: Final = 64


def vocabulary() -> Vocabulary:
    """The letters from ``a`` on."""
    letters = {chr(ord("a") + index): index for index in range(SIZE)}
    model = {"type": "BPE", "vocab": letters, "merges": []}
    decoder = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return Vocabulary.from_tokenizer_json(
        json.dumps({"version": "1.0", "added_tokens": [], "decoder": decoder, "model": model})
    )


def engine(*, disagreement: float = 0.0, sharpness: float = 1.0) -> _core.FakeEngine:
    """The target, or a drafter that disagrees with it."""
    return _core.FakeEngine(SIZE, 2 * _CONTEXT, seed=1, disagreement=disagreement, sharpness=sharpness)


def logits_of(model: _core.FakeEngine) -> LogitsOf:
    """The model as a function that remembers, padding included."""
    known: dict[tuple[int, ...], Rows] = {}

    def lookup(tokens: Sequence[int]) -> Rows:
        key = tuple(tokens)
        if key not in known:
            row = model.logits(key)
            known[key] = np.concatenate([row, np.full(PADDING, row.max() + 5.0, np.float32)])
        return known[key]

    return lookup


def verifier_of(target: LogitsOf) -> ScriptedVerifier:
    """Serves it."""
    return ScriptedVerifier(target, vocabulary(), logits_width=SIZE + PADDING, max_context=_CONTEXT)


class Table:
    """Plays requests one after the other: the same objects serve all of them, as they would in a service."""

    def __init__(self, verifier: Verifier, drafter: _core.Engine) -> None:
        self._service = Service(verifier)
        self._service.scheduler.close()
        self._turns = _Turns()
        self._service.scheduler = self._turns  # type: ignore[assignment]
        self._drafter = _core.Drafter(drafter, _core.DrafterOptions(context=_CONTEXT))
        self._down: deque[bytes] = deque()
        self._cloud = self._service.connect(self._down.append, _unexpected_end)
        target = self._service.target
        self._edge = EdgeSession(
            tokenizer=target.fingerprint, vocabulary=target.vocabulary, drafter="stand-in"
        )
        self._ask(self._edge.hello())

    def play(
        self,
        prompt: Sequence[int],
        rules: _core.SamplingRules,
        *,
        tokens: int,
        draft_length: int,
        stop_ids: Sequence[int] = (),
        drafter_rules: _core.SamplingRules | None = None,
    ) -> list[int]:
        """One request's output. ``drafter_rules``: what the drafter goes by instead."""
        options: dict[str, Any] = {"stop_ids": list(stop_ids), "max_tokens": tokens, "at": 0.0}
        self._drafter.begin(list(prompt), drafter_rules or rules, list(stop_ids))
        event = self._ask(self._edge.open(prompt, rules, **options))
        output: list[int] = []
        while True:
            output += event.tokens
            if event.finish != _core.Finish.none:
                return output
            self._drafter.apply_verdict(event.tokens)
            while self._drafter.ready < draft_length and not self._drafter.step(1, True).exhausted:
                pass
            event = self._ask(self._edge.draft(self._drafter.take_chain(draft_length), at=0.0))

    def _ask(self, message: bytes) -> Any:
        self._cloud.receive(message)
        self._turns.run()
        return self._edge.receive(self._down.popleft(), 0.0)


class _Turns:
    """The scheduler's queue without its thread."""

    waiting = 0

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    def submit(self, units: Units) -> Job:
        job = Job(units)
        self._jobs.append(job)
        return job

    def cancel(self, job: Job) -> None:
        job.cancelled = True
        if job in self._jobs:
            self._jobs.remove(job)
            job.units.close()

    def pad(self, started: float, nodes: int) -> None:
        pass

    def run(self) -> None:
        while self._jobs:
            for _ in self._jobs.popleft().units:
                pass


def _unexpected_end(reason: str) -> None:
    raise AssertionError(f"the cloud hung up: {reason}")
