"""The runtime as the gateway uses it: what is asked becomes jobs, jobs become pieces, one at a time."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, cast

from acespec_edge import __version__
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import AcespecError
from acespec_edge.gateway import stamp
from acespec_edge.gateway.errors import CONTEXT_LENGTH, ApiError, api_error, bad_request, stopping
from acespec_edge.gateway.quotas import Quotas
from acespec_edge.gateway.turns import Turns
from acespec_edge.prompt import Prompt, prompt_ids
from acespec_edge.request import Mode, Options, checked_mode, make_request
from acespec_edge.result import Piece, Result

UNLIMITED: Final = (1 << 32) - 1
"""``max_tokens`` where nobody has said what the context holds: it ends by itself."""

_log: Final = logging.getLogger("acespec.gateway")


@dataclass(frozen=True, slots=True)
class Job:
    """One generation: the choice it makes, its prompt's number and ids, and how. ``charge`` hears of tokens
    as they are taken: of the prompt when it begins, of the output as it comes."""

    choice: int
    prompt_number: int
    prompt: list[int]
    options: Options
    charge: Callable[[int], None] = lambda tokens: None


@dataclass(frozen=True, slots=True)
class Wish:
    """What all choices of a request share. ``max_tokens`` None: as many as the context holds;
    ``limit_name``: what the request calls it."""

    options: Options
    mode: Mode | None = None
    n: int = 1
    seed: int | None = None
    max_tokens: int | None = None
    limit_name: str = "max_tokens"


class Gateway:
    """One runtime behind the endpoints. For one event loop.

    At most ``room`` requests are inside; their generations take turns.
    """

    def __init__(
        self,
        edge: EdgeRuntime,
        *,
        name: str | None = None,
        mode: Mode = "auto",
        context: int | None = None,
        room: int = 32,
        patience: float = 600.0,
    ) -> None:
        """``name``: of the model, that of the bundle by default. ``mode``: of requests that say none.
        ``context``: tokens that the drafter holds. ``patience``: seconds that a generation waits for its turn
        at most.
        """
        checked_mode(mode)
        self.edge = edge
        self.name = name or edge.bundle.name
        self.created = stamp.now()
        self.turns = Turns(room, patience)
        self.quotas = Quotas()
        self._mode: Mode = mode
        self._drafter_context = min(context or edge.bundle.max_positions, edge.bundle.max_positions)
        self._target = ""
        self._target_context: int | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.draining = False
        """No request is admitted any more."""
        self.first_token: Callable[[float], None] = lambda seconds: None
        """Hears how long each first token took, seconds."""
        self._look_at_cloud()

    @property
    def fingerprint(self) -> str:
        """Names what decides the output besides a request: drafter, target and version."""
        self._look_at_cloud()
        bundle = self.edge.bundle
        tokenizer = bundle.vocabulary_table.fingerprint.hex()
        parts = "\n".join([__version__, bundle.name, bundle.quant, tokenizer, self._target])
        return "fp_" + hashlib.sha256(parts.encode()).hexdigest()[:10]

    def check_model(self, asked: str | None) -> None:
        """Raises ApiError (404) for another model than this one; none is this one."""
        if asked is not None and asked != self.name:
            raise ApiError(
                404,
                f"model is {asked!r}: {self.name!r} is the one served here",
                param="model",
                code="model_not_found",
            )

    def admitted(self) -> AbstractContextManager[None]:
        """A place for a request. Raises ApiError (429) when there is none."""
        if self._stopping or self.draining:
            raise stopping()
        return self.turns.admitted()

    async def jobs(
        self,
        prompts: Sequence[Prompt],
        wish: Wish,
        *,
        raw: bool,
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> list[Job]:
        """``wish.n`` jobs for each prompt, by seeds that count up, checked as far as this device can.

        Raises ApiError, and UsageError for options that are wrong.
        """
        mode = wish.mode or self._mode
        checked_mode(mode)
        first = secrets.randbits(53) if wish.seed is None else wish.seed % (1 << 64)
        jobs: list[Job] = []
        for number, prompt in enumerate(prompts):
            ids, options = await asyncio.to_thread(self._checked, prompt, wish, mode, raw, tools)
            for choice in range(wish.n):
                seeded = cast("Options", {**options, "seed": (first + choice) % (1 << 64)})
                jobs.append(Job(len(jobs), number, ids, seeded))
        return jobs

    async def run(self, job: Job) -> AsyncGenerator[Piece | Result, None]:
        """The pieces of a job, once it is its turn, and its result. Closing it cancels the job and waits for
        its end. A reader that is slow holds no turn. Raises what EdgeRuntime raises, and ApiError."""
        if self._stopping:
            raise stopping()
        events: asyncio.Queue[Piece | Result | BaseException] = asyncio.Queue()
        task = asyncio.create_task(self._generate(job, events))
        # Behind whatever it says itself: a task that is cancelled in time says nothing.
        task.add_done_callback(lambda _: events.put_nowait(stopping()))
        self._running.add(task)
        try:
            while True:
                event = await events.get()
                if isinstance(event, BaseException):
                    raise event
                yield event
                if isinstance(event, Result):
                    return
        finally:
            task.cancel()
            await asyncio.wait({task})
            self._running.discard(task)

    def drain(self) -> bool:
        """Admits no request any more; whether none is inside."""
        self.draining = True
        return self.turns.inside == 0

    def stop(self) -> None:
        """Ends what runs with an error, and takes nothing more."""
        self._stopping = True
        for task in self._running:
            task.cancel()

    async def _generate(self, job: Job, events: asyncio.Queue[Piece | Result | BaseException]) -> None:
        try:
            async with self.turns.turn():
                async with self.edge.astream(job.prompt, **job.options) as stream:
                    job.charge(len(job.prompt))
                    async for piece in stream:
                        job.charge(len(piece.token_ids))
                        events.put_nowait(piece)
                result = stream.result
            self._ended(result)
            events.put_nowait(stopping() if result.finish_reason == "cancelled" else result)
        except (AcespecError, ApiError) as error:
            events.put_nowait(error)
        except Exception as error:
            _log.exception("a generation failed")
            events.put_nowait(api_error(error))

    def _ended(self, result: Result) -> None:
        stats = result.stats
        if stats.ttft_ms:
            self.first_token(1e-3 * stats.ttft_ms)
        facts = {
            "finish": result.finish_reason,
            "prompt_tokens": result.usage.prompt_tokens,
            "tokens": result.usage.completion_tokens,
            "seconds": round(stats.seconds, 3),
            "tokens_per_second": round(stats.tokens_per_second, 2),
            "hit_rate": round(stats.hit_rate, 3),
        }
        _log.info("generation", extra=facts)

    def _checked(
        self, prompt: Prompt, wish: Wish, mode: Mode, raw: bool, tools: Sequence[dict[str, Any]] | None
    ) -> tuple[list[int], Options]:
        bundle = self.edge.bundle
        try:
            ids = prompt_ids(bundle, prompt, raw=raw, tools=tools)
            tokens = self._tokens(len(ids), wish, mode)
            options = cast("Options", {**wish.options, "mode": mode, "max_tokens": tokens})
            make_request(bundle, ids, mode, **options)
        except RecursionError as problem:
            raise bad_request("the request is nested too deeply") from problem
        return ids, options

    def _tokens(self, prompt: int, wish: Wish, mode: Mode) -> int:
        """``max_tokens`` of a prompt of so many tokens."""
        self._look_at_cloud()
        limit, holder = self._target_context, self._target or "the target"
        if mode == "edge":
            limit, holder = self._drafter_context, "the drafter"
        if limit is None:
            return wish.max_tokens or UNLIMITED
        room = limit - prompt
        holds = f"{holder} holds {limit} tokens, prompt and output together"
        if room < 1:
            raise bad_request(
                f"the prompt has {prompt} tokens: {holds}, so {limit - 1} are the most", code=CONTEXT_LENGTH
            )
        if wish.max_tokens is not None and wish.max_tokens > room:
            raise bad_request(
                f"{wish.limit_name} is {wish.max_tokens}: {holds}, and the prompt has {prompt}, "
                f"so {room} are the most",
                wish.limit_name,
                CONTEXT_LENGTH,
            )
        return wish.max_tokens or room

    def _look_at_cloud(self) -> None:
        # What it said last stands while the connection is lost.
        if (welcome := self.edge.welcome) is not None:
            self._target, self._target_context = welcome.target, welcome.max_context
