"""Plain language models and a plain drafter: small enough to be right by reading them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from acespec_edge import _core
from tests.clock import LIMIT

Choose = Callable[[Sequence[int]], int]
"""A deterministic language model: the token after a sequence."""


def scripted(tokens: Sequence[int], prompt: int) -> Choose:
    """A model that writes ``tokens`` after a prompt of ``prompt`` tokens, and id 0 after them."""
    return lambda sequence: tokens[len(sequence) - prompt] if len(sequence) - prompt < len(tokens) else 0


def mixing(seed: int, vocabulary: int = 60, window: int = 4) -> Choose:
    """A model whose choice depends on the last tokens and their position."""

    def choose(sequence: Sequence[int]) -> int:
        value = seed * 7919 + len(sequence)
        for token in sequence[-window:]:
            value = (value * 31 + token + 1) % 1000003
        return value % vocabulary

    return choose


def sometimes(target: Choose, other: Choose, every: int) -> Choose:
    """``target``, but ``other`` at each position that ``every`` divides: a drafter that errs now and then."""
    return lambda sequence: (other if len(sequence) % every == 0 else target)(sequence)


def decode_plainly(choose: Choose, prompt: Sequence[int], count: int, stop: Sequence[int] = ()) -> list[int]:
    """What the model writes alone; a stop id ends it and is the last."""
    sequence = list(prompt)
    for _ in range(count):
        sequence.append(choose(sequence))
        if sequence[-1] in stop:
            break
    return sequence[len(prompt) :]


@dataclass(frozen=True)
class Report:
    rows: int = 1
    seconds: float = 0.0
    prefilling: bool = False
    exhausted: bool = False


@dataclass(frozen=True)
class Recovery:
    hit: bool
    microseconds: float


@dataclass(frozen=True)
class Taken:
    tokens: list[int]
    parents: list[int]


class FakeDrafter:
    """One chain, no branches. Keeps the contract of the native drafter, and fails a test that breaks it."""

    def __init__(self, choose: Choose, *, context: int = 2048, chunk: int = 8, deepest: int = 12) -> None:
        self._choose = choose
        self._context = context
        self._chunk = chunk
        self._deepest = deepest
        self.committed: list[int] = []
        self.chain: list[int] = []
        self._pending = 0
        self._sent: list[int] = []
        self._next_number = 1
        self.steps = 0

    @property
    def ready(self) -> int:
        return len(self.chain)

    @property
    def unsent(self) -> int:
        return len(self.chain) - len(self._sent)

    @property
    def pending(self) -> int:
        return self._pending

    @property
    def room(self) -> int:
        return self._context - len(self.committed)

    @property
    def chain_weights(self) -> list[int]:
        raise AssertionError("this drafter draws from no distribution")

    def resample(self, depth: int, row: _core.SparseRow) -> int | None:
        raise AssertionError("this drafter draws from no distribution")

    def set_mask(self, source: object) -> None:
        raise AssertionError("this drafter knows no grammar")

    def begin(
        self,
        prompt: list[int],
        rules: _core.SamplingRules,
        stop_ids: Sequence[int],
        residual: bool,
        lookup: bool = True,
    ) -> int:
        assert 0 < len(prompt) <= self._context and not residual
        self.committed, self.chain = list(prompt), []
        self._pending = len(prompt)
        self._sent, self._next_number = [], 1
        return 0

    def step(self, width: int, extend: bool) -> Report:
        self.steps += 1
        if self._pending:
            self._pending = max(0, self._pending - self._chunk)
            if self._pending == 0:
                self._grow()
            return Report(prefilling=True)
        if not extend and len(self.chain) >= self._deepest:
            return Report(exhausted=True)
        return Report() if self._grow() else Report(exhausted=True)

    def set_arm(self, arm: _core.Arm) -> None:
        assert arm in _core.Arm

    def allot(self, alternatives: Sequence[int]) -> None:
        assert all(count >= 0 for count in alternatives)

    def frontier(self, most: int) -> list[float]:
        deep = self._pending > 0 or len(self.chain) >= self._deepest
        return [] if deep else [0.9 ** len(self.chain)][:most]

    def prospect(self, count: int) -> tuple[float, float]:
        weights = self.survey(count)
        return (sum(weights[1:]), weights[0]) if len(weights) > 1 else (0.0, 0.0)

    def survey(self, most: int) -> list[float]:
        shallow = min(len(self.chain), self.room - 1)
        return [0.9 ** (depth + 1) for depth in range(len(self._sent), shallow)][:most]

    def take(self, count: int) -> Taken:
        return self.take_chain(len(self.survey(count)))

    def take_chain(self, length: int) -> Taken:
        tokens = self.chain[len(self._sent) :][:length]
        numbers = list(range(self._next_number, self._next_number + len(tokens)))
        parents = [self._sent[-1] if self._sent else 0, *numbers][: len(tokens)]
        self._sent += numbers
        self._next_number += len(tokens)
        return Taken(tokens, parents)

    def skip_numbers(self, count: int) -> None:
        self._next_number += count

    def chain_acceptances(self, most: int) -> list[float]:
        return [0.9] * min(most, len(self.chain))

    def acceptance(self) -> float:
        return 0.9

    def apply_verdict(self, tokens: list[int]) -> Recovery:
        assert 0 < len(tokens) <= self.room
        hit = self._pending == 0 and len(self.chain) > len(tokens) and self.chain[: len(tokens)] == tokens
        self.committed += tokens
        self.chain = self.chain[len(tokens) :] if hit else []
        self._sent = self._sent[len(tokens) :] if hit else []
        if not hit:
            self._pending += len(tokens)
        return Recovery(hit, 1.0)

    def _grow(self) -> bool:
        if len(self.committed) + len(self.chain) >= self._context:
            return False
        self.chain.append(self._choose(self.committed + self.chain))
        return True


@contextlib.contextmanager
def no_thread_left() -> Iterator[None]:
    """Fails when a thread that started inside does not end."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline and set(threading.enumerate()) - before:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before
