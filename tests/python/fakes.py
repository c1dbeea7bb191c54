"""Plain models of a drafter, a cloud and a bundle: small enough to be right by reading them."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.errors import LinkError
from acespec_edge.prompt_codec import said_prompt
from acespec_edge.transport import Received
from tests.clock import LIMIT

Message = Any
"""One of the message classes of ``_core``."""

Choose = Callable[[Sequence[int]], int]
"""A deterministic language model: the token after a sequence."""

EOS = 63
EMOJI = "\N{GRINNING FACE}".encode()
_LETTERS = [*"abcdefghijklmnopqrstuvwxyz", *"0123456789", " ", ".", ",", "!", "?", "-", "\n"]
_WORDS = ["th", "he", "in", "er", "an", "re", "on", "at", "en", "nd"]


def byte_symbol(byte: int) -> str:
    """How byte-level vocabularies write a byte: printable Latin-1 as itself, the rest from U+0100 up."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in kept]
    return chr(byte) if byte in kept else chr(256 + others.index(byte))


def symbols(data: bytes) -> str:
    return "".join(byte_symbol(byte) for byte in data)


EMOJI_IDS = [len(_LETTERS) + len(_WORDS) + index for index in range(4)]
ENTRIES = [*_LETTERS, *_WORDS]
"""Texts of the first ids; after them the four bytes of one emoji, fillers, and EOS as id 63."""


def tokenizer_json() -> str:
    """A byte-level tokenizer of 64 entries."""
    vocabulary = {symbols(text.encode()): index for index, text in enumerate(ENTRIES)}
    vocabulary |= {byte_symbol(byte): EMOJI_IDS[0] + index for index, byte in enumerate(EMOJI)}
    for index in range(len(vocabulary), EOS):
        vocabulary[f"Z{index}"] = index
    added = {"id": EOS, "content": "<eos>", "special": True, "single_word": False}
    added |= {"lstrip": False, "rstrip": False, "normalized": False}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [added],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        }
    )


def make_bundle(folder: Path, *, eos_ids: Sequence[int] = (EOS,), chat_template: str | None = None) -> Bundle:
    """A bundle of that tokenizer, without a model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    return Bundle(
        path=folder,
        format=1,
        name="fake-64",
        architecture="llama",
        layers=1,
        hidden=8,
        heads=1,
        kv_heads=1,
        head_dim=8,
        kv_width=8,
        vocabulary=64,
        logits_width=64,
        max_positions=4096,
        quant="fp32",
        tokenizer_fingerprint="",
        bos_id=None,
        eos_ids=list(eos_ids),
        source="tests",
        licence="none",
        sha256={},
    )


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


class FakeCloud:
    """A Link whose far end is a plain greedy target that answers at once.

    ``lag``: looks without waiting that find nothing before a message is there, a round trip in steps of the
    drafter. ``alter`` may change a message on its way down, or replace it by None to lose it.
    ``vanish_after``: messages down until the link is lost; ``silent_after``: until nothing comes any more.
    """

    def __init__(
        self,
        choose: Choose,
        *,
        vocabulary: int = 64,
        max_context: int = 4096,
        max_nodes: int = 64,
        lag: int = 0,
        vanish_after: int | None = None,
        silent_after: int | None = None,
        alter: Callable[[Message], Message | None] = lambda message: message,
    ) -> None:
        self._choose = choose
        self._welcome = _core.Welcome(
            vocabulary=vocabulary, max_context=max_context, max_nodes=max_nodes, target="fake target"
        )
        self._lag = lag
        self._looks = 0
        self._vanish_after = vanish_after
        self._silent_after = silent_after
        self._alter = alter
        self._inbox: deque[Received] = deque()
        self._sent_down = 0
        self._open: _core.Open | None = None
        self._committed: list[int] = []
        self._round = 0
        self.received: list[Message] = []
        self.closed = False
        self.bytes_up = 0
        self.bytes_down = 0

    @property
    def drafts(self) -> list[_core.Draft]:
        return [message for message in self.received if isinstance(message, _core.Draft)]

    def send(self, frame: bytes) -> None:
        if self.closed:
            raise LinkError("the fake link is closed")
        self.bytes_up += len(frame)
        message = _core.decode(frame)
        if isinstance(message, _core.Open):
            message.prompt, message.prompt_zstd = said_prompt(message, 1 << 17), b""
        self.received.append(message)
        if isinstance(message, _core.Hello):
            self._down(self._welcome)
        elif isinstance(message, _core.Open):
            assert self._open is None, "one request at a time"
            self._open, self._committed, self._round = message, list(message.prompt), 0
            self._answer(0, 1, [], message.free_run)
        elif isinstance(message, _core.Draft) and self._open is not None:
            assert message.base == len(self._committed)
            self._answer(message.round, message.first_node, list(message.tokens), message.free_run)
        elif isinstance(message, _core.Cancel) and self._open is not None:
            self._verdict(self._round, 0, [], _core.Finish.cancelled)

    def receive(self, timeout: float) -> Received | None:
        if self._inbox and timeout == 0 and self._looks < self._lag:
            self._looks += 1
            return None
        if self._inbox:
            self._looks = 0
            received = self._inbox.popleft()
            self.bytes_down += len(received.data)
            return received
        if self.closed or (self._vanish_after is not None and self._sent_down >= self._vanish_after):
            raise LinkError("the fake link is lost")
        time.sleep(min(timeout, 0.01))
        return None

    def close(self) -> None:
        self.closed = True

    def _answer(self, number: int, first_node: int, tokens: list[int], free_run: bool) -> None:
        self._round = number
        accepted = 0
        while True:
            token, finish = self._next()
            if accepted < len(tokens) and tokens[accepted] == token and finish == _core.Finish.none:
                self._committed.append(token)
                accepted += 1
                continue
            self._verdict(number, first_node + accepted - 1 if accepted else 0, [token], finish, accepted)
            if not free_run or finish != _core.Finish.none:
                return
            tokens, accepted = [], 0

    def _next(self) -> tuple[int, _core.Finish]:
        assert self._open is not None
        token = self._choose(self._committed)
        generated = len(self._committed) + 1 - len(self._open.prompt)
        if token in self._open.stop_ids:
            return token, _core.Finish.stop
        if generated == self._open.max_tokens:
            return token, _core.Finish.length
        full = len(self._committed) + 1 == self._welcome.max_context
        return token, _core.Finish.context if full else _core.Finish.none

    def _verdict(
        self, number: int, node: int, tokens: list[int], finish: _core.Finish, accepted: int = 0
    ) -> None:
        assert self._open is not None
        base = len(self._committed) - accepted
        self._committed += tokens
        request = self._open.request
        if finish != _core.Finish.none:
            self._open = None
        self._down(
            _core.Verdict(
                request=request, round=number, base=base, accepted_node=node, tokens=tokens, finish=finish
            )
        )

    def _down(self, message: Message) -> None:
        altered = self._alter(message)
        lost = self._vanish_after is not None and self._sent_down >= self._vanish_after
        silent = self._silent_after is not None and self._sent_down >= self._silent_after
        if altered is None or lost or silent:
            return
        self._sent_down += 1
        self._inbox.append(Received(_core.encode(altered), time.monotonic()))


def with_eos(bundle: Bundle, *ids: int) -> Bundle:
    """The same bundle with other stop ids."""
    return replace(bundle, eos_ids=list(ids))


@contextlib.contextmanager
def no_thread_left() -> Iterator[None]:
    """Fails when a thread that started inside does not end."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline and set(threading.enumerate()) - before:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before
