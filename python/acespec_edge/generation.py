"""A running generation: one thread drafts, exchanges and commits; the caller reads pieces as they come."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from acespec_edge import _core
from acespec_edge.errors import LinkError, UsageError
from acespec_edge.logprobs import TokenLogprob
from acespec_edge.modes import Commit, Run
from acespec_edge.output import Output
from acespec_edge.request import Request
from acespec_edge.result import FinishReason, Origin, Piece, Result, Usage
from acespec_edge.stats import Meter
from acespec_edge.stops import StopStrings
from acespec_edge.vocabulary import Vocabulary

_JOIN_TIMEOUT = 60.0
"""Seconds to wait for a cancelled thread: the longest single forward, or a connection being opened."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event of a generation; with an ``error``, ``result`` is what came before it."""

    result: Result
    error: BaseException | None


Event = Piece | Ended
Source = Callable[[Run], contextlib.AbstractContextManager[Iterator[Commit]]]
"""Takes the runtime for one run, yields its commits, and tidies up after it."""


class Generation:
    """Runs a request on a thread of its own and hands events to ``sink``: pieces, then one Ended."""

    def __init__(self, source: Source, request: Request, vocabulary: Vocabulary) -> None:
        self._source = source
        self._request = request
        self._vocabulary = vocabulary
        self._output = Output(
            vocabulary, frozenset(request.stop_ids), StopStrings(request.stops), request.earlier
        )
        self._logprobs: list[TokenLogprob] = []
        self._meter = Meter(seed=request.rules.seed, started=time.monotonic())
        self._origin: Origin = "edge" if request.mode == "edge" else "target"
        """Of what is shown."""
        self._origins: list[tuple[Origin, int]] = []
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, sink: Callable[[Event], None]) -> None:
        """``sink`` is called on the generation's thread."""
        # What the thread logs bears the id of the request that the caller works for.
        work = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=work, args=(self._run, sink), name="acespec-generation", daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        """Asks the thread to stop soon; what was committed until then is the result."""
        self._cancelled.set()

    def join(self) -> None:
        """Waits for the thread of an ended or cancelled generation."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_TIMEOUT)

    def _run(self, sink: Callable[[Event], None]) -> None:
        finish: FinishReason = "error"
        failure: BaseException | None = None
        try:
            finish = self._generate(sink)
        except BaseException as error:
            failure = error
        # Held text goes out however it ended, so that the pieces always add up to the result.
        self._show(sink, [], self._output.finish(), [])
        ended = Ended(self._result(finish), failure)
        if isinstance(failure, LinkError):
            failure.partial = ended.result
        sink(ended)

    def _generate(self, sink: Callable[[Event], None]) -> FinishReason:
        run = Run(self._request, self._vocabulary, self._meter, self._cancelled)
        with self._source(run) as commits:
            for commit in commits:
                text, ids = self._output.push(commit.tokens)
                self._origin = commit.origin if commit.tokens else self._origin
                self._show(sink, ids, text, commit.logprobs)
                finish: FinishReason | None = "stop" if self._output.ended else commit.finish
                if finish is not None:
                    return finish
        return "cancelled"

    def _show(
        self, sink: Callable[[Event], None], ids: list[int], text: str, reports: list[_core.TokenLogprob]
    ) -> None:
        """``reports``: on all tokens of the commit; ``ids`` may end before them."""
        if not ids and not text:
            return
        logprobs = None
        if self._request.logprobs is not None:
            logprobs = [
                TokenLogprob.of(token, report, self._vocabulary)
                for token, report in zip(ids, reports, strict=False)
            ]
            self._logprobs += logprobs
        now = time.monotonic()
        if ids:
            self._meter.shown(len(ids), now)
            self._count(len(ids))
        sink(Piece(text, ids, self._origin, now - self._meter.started, logprobs))

    def _cached(self) -> int:
        alone = self._request.mode == "edge"
        return (self._meter.reused_tokens or 0) if alone else self._meter.traffic().reused

    def _count(self, tokens: int) -> None:
        if self._origin == "edge" and self._request.mode != "edge":
            self._meter.offline_tokens += tokens
        if self._origins and self._origins[-1][0] == self._origin:
            tokens += self._origins.pop()[1]
        self._origins.append((self._origin, tokens))

    def _result(self, finish: FinishReason) -> Result:
        ids = self._output.token_ids
        return Result(
            text=self._output.text,
            token_ids=ids,
            finish_reason=finish,
            usage=Usage(
                len(self._request.prompt),
                len(ids),
                self._cached(),
                sum(count for who, count in self._origins if who == "edge"),
            ),
            stats=self._meter.summary(time.monotonic()),
            logprobs=None if self._request.logprobs is None else self._logprobs,
            earlier_ids=list(self._request.earlier),
            origins=list(self._origins),
        )


class Stream:
    """Pieces of a generation as they are committed; afterwards ``result``.

    Leaving the loop early, or close(), cancels the generation. One reader.
    """

    def __init__(self, generation: Generation) -> None:
        """Starts the generation."""
        self._generation = generation
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._ended: Ended | None = None
        generation.start(self._events.put)

    @property
    def result(self) -> Result:
        """The whole; after an error or cancellation what there was. Raises UsageError before the end was
        read."""
        return _result_of(self._ended)

    def __next__(self) -> Piece:
        if self._ended is not None:
            raise StopIteration
        event = self._events.get()
        if isinstance(event, Piece):
            return event
        self._ended = event
        self._generation.join()
        if event.error is not None:
            raise event.error
        raise StopIteration

    def __iter__(self) -> Iterator[Piece]:
        try:
            while True:
                try:
                    piece = next(self)
                except StopIteration:
                    return
                yield piece
        finally:
            self.close()

    def close(self) -> None:
        """Cancels what still runs and waits for it; pieces not yet read are dropped, ``result`` holds them
        all."""
        self._generation.cancel()
        while self._ended is None:
            event = self._events.get()
            if isinstance(event, Ended):
                self._ended = event
        self._generation.join()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AsyncStream:
    """Stream for asyncio: the same generation on the same thread, its events handed to the running loop.

    Leaving the loop early cancels the generation; aclose() also waits for its ``result``.
    """

    def __init__(self, generation: Generation) -> None:
        """Starts the generation; needs a running event loop."""
        self._generation = generation
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._ended: Ended | None = None
        loop = asyncio.get_running_loop()

        def sink(event: Event) -> None:
            # The loop may be gone when its program ended without reading to the end.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._events.put_nowait, event)

        generation.start(sink)

    @property
    def result(self) -> Result:
        """As Stream.result."""
        return _result_of(self._ended)

    async def __anext__(self) -> Piece:
        if self._ended is not None:
            raise StopAsyncIteration
        event = await self._events.get()
        if isinstance(event, Piece):
            return event
        self._ended = event
        if event.error is not None:
            raise event.error
        raise StopAsyncIteration

    async def __aiter__(self) -> AsyncIterator[Piece]:
        try:
            while True:
                try:
                    piece = await self.__anext__()
                except StopAsyncIteration:
                    return
                yield piece
        finally:
            self._generation.cancel()

    async def aclose(self) -> None:
        """As Stream.close()."""
        self._generation.cancel()
        while self._ended is None:
            event = await self._events.get()
            if isinstance(event, Ended):
                self._ended = event

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


def _result_of(ended: Ended | None) -> Result:
    if ended is None:
        raise UsageError("this stream has no result yet: read it to the end, or close it")
    return ended.result
