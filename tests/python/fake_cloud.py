"""A plain cloud at the end of a link: small enough to be right by reading it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from acespec_edge import _core
from acespec_edge.errors import LinkError
from acespec_edge.prompt_codec import said_prompt
from acespec_edge.transport import Received
from tests.python.fakes import Choose

Message = Any
"""One of the message classes of ``_core``."""


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
