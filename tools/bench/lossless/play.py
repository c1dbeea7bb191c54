"""An edge and a cloud in this thread, joined by the real protocol: the native drafter, both sessions, every
message encoded and decoded, the judge. Only the models are stand-ins, and the network is a queue.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

import numpy as np

from acespec_edge import _core
from acespec_edge.grammar import Grammar
from acespec_edge.grammar_text import GrammarText
from acespec_edge.session import EdgeSession
from acespec_edge.session_events import Committed
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

    def __init__(
        self,
        verifier: Verifier,
        engine: _core.Engine,
        make_drafter: Callable[[_core.Engine, _core.DrafterOptions], _core.Drafter] = _core.Drafter,
    ) -> None:
        self._service = Service(verifier)
        self._service.scheduler.close()
        self._turns = _Turns()
        self._service.scheduler = self._turns  # type: ignore[assignment]
        self._service.compiler = _Compiler(self._turns)  # type: ignore[assignment]
        self._vocabulary = verifier.vocabulary
        self._drafter = make_drafter(engine, _core.DrafterOptions(context=_CONTEXT))
        self._down: deque[bytes] = deque()
        self._cloud = self._service.connect(self._down.append, _unexpected_end)
        target = self._service.target
        self._edge = EdgeSession(
            tokenizer=target.fingerprint, vocabulary=target.vocabulary, drafter="stand-in"
        )
        self._ask(self._edge.hello())
        self._edge.taken()

    def play(
        self,
        prompt: Sequence[int],
        rules: _core.SamplingRules,
        *,
        tokens: int,
        draft_length: int,
        stop_ids: Sequence[int] = (),
        drafter_rules: _core.SamplingRules | None = None,
        residual: bool = False,
        regex: str | None = None,
        told: bool = True,
    ) -> list[int]:
        """One request's output. ``drafter_rules``: what the drafter goes by instead. ``told``: whether the
        cloud knows of the grammar.
        """
        options: dict[str, Any] = {
            "stop_ids": list(stop_ids),
            "max_tokens": tokens,
            "at": 0.0,
            "mode": _core.Mode.residual if residual else _core.Mode.coupled,
            "grammar": GrammarText("regex", regex) if regex is not None and told else None,
        }
        self._drafter.begin(list(prompt), drafter_rules or rules, list(stop_ids), residual)
        grammar = None if regex is None else self._hold_to(regex, stop_ids)
        event = self._ask(self._edge.open(prompt, rules, **options))
        output: list[int] = []
        while True:
            output += event.tokens
            if event.finish != _core.Finish.none:
                return output
            drawn = [] if event.sparse is None else [self._resampled(event, event.sparse)]
            output += drawn
            self._drafter.apply_verdict(event.tokens + drawn)
            if grammar is not None and told:
                grammar.commit(event.tokens + drawn)
            while self._drafter.ready < draft_length and not self._drafter.step(1, True).exhausted:
                pass
            chain = self._drafter.take_chain(draft_length).tokens
            event = self._ask(
                self._edge.draft(
                    chain,
                    at=0.0,
                    weights=self._drafter.chain_weights if residual else (),
                    resampled=drawn[0] if drawn else None,
                )
            )

    def _hold_to(self, regex: str, stop_ids: Sequence[int]) -> Grammar:
        """Masks the drafts of the request that has begun."""
        grammar = Grammar.compile("regex", regex, self._vocabulary, stop_ids)
        self._drafter.set_mask(grammar.mask)
        return grammar

    def _resampled(self, event: Committed, row: _core.SparseRow) -> int:
        """The token in place of the rejected one; of so few tokens every row has all in its head."""
        token = self._drafter.resample(len(event.tokens), row)
        assert token is not None
        return token

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


class _Compiler:
    """Lets grammars be made in turn, too."""

    def __init__(self, turns: _Turns) -> None:
        self._turns = turns

    def submit(self, call: Callable[..., None], *arguments: Any) -> Future[None]:
        def units() -> Units:
            call(*arguments)
            yield

        self._turns.submit(units())
        return Future()


def _unexpected_end(reason: str) -> None:
    raise AssertionError(f"the cloud hung up: {reason}")
