"""Jobs into answers, whole or as events; what differs between the two kinds of completion is a Form."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict
from typing import Any, Final, Literal, Protocol

from acespec_edge.gateway import stamp
from acespec_edge.gateway.service import Gateway, Job
from acespec_edge.gateway.sse import DONE, event
from acespec_edge.result import FinishReason, Piece, Result, Usage

Choice = dict[str, Any]
Finish = Literal["stop", "length", "tool_calls"]

FINISH: Final[dict[FinishReason, Finish]] = {"stop": "stop", "length": "length", "context": "length"}


class Form(Protocol):
    """The choices of one kind of completion. Choices come one after the other, from ``begin`` to ``end``."""

    prefix: str
    """Of ids."""
    whole_kind: str
    """``object`` of a whole answer."""
    chunk_kind: str
    """``object`` of a chunk."""

    def begin(self, index: int) -> list[Choice]:
        """Choices of the chunks before the first piece."""

    def piece(self, index: int, piece: Piece) -> list[Choice]:
        """Those of a piece."""

    def end(self, index: int, result: Result) -> list[Choice]:
        """Those after the last piece; the very last one bears the finish reason."""

    def whole(self, index: int, result: Result) -> Choice:
        """The choice of an answer that is not streamed."""


async def stream_answer(
    gateway: Gateway, jobs: Sequence[Job], form: Form, *, usage: bool
) -> AsyncGenerator[bytes, None]:
    """The events of a streamed answer; with ``usage``, the last one counts tokens."""
    head = _head(gateway, form, form.chunk_kind)
    more: dict[str, Any] = {"usage": None} if usage else {}
    counts = []
    for job in jobs:
        begun = False
        async with contextlib.aclosing(gateway.run(job)) as run:
            async for part in run:
                choices = [] if begun else form.begin(job.choice)
                begun = True
                mark: dict[str, Any] = {}
                if isinstance(part, Result):
                    choices += form.end(job.choice, part)
                    counts.append(part.usage)
                else:
                    choices += form.piece(job.choice, part)
                    if part.origin == "edge":
                        mark = {"acespec": {"origin": "edge"}}
                for choice in choices:
                    yield event({**head, "choices": [choice], **more, **mark})
    if usage:
        yield event({**head, "choices": [], "usage": _usage(jobs, counts)})
    yield DONE


async def whole_answer(gateway: Gateway, jobs: Sequence[Job], form: Form, *, stats: bool) -> dict[str, Any]:
    """The answer in one piece; with ``stats``, what each choice cost, too."""
    results = []
    for job in jobs:
        async with contextlib.aclosing(gateway.run(job)) as run:
            async for part in run:
                if isinstance(part, Result):
                    results.append(part)
    return {
        **_head(gateway, form, form.whole_kind),
        "choices": [form.whole(job.choice, result) for job, result in zip(jobs, results, strict=True)],
        "usage": _usage(jobs, [result.usage for result in results]),
        **({"acespec": {"stats": [asdict(result.stats) for result in results]}} if stats else {}),
    }


def _head(gateway: Gateway, form: Form, kind: str) -> dict[str, Any]:
    return {
        "id": f"{form.prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": stamp.now(),
        "model": gateway.name,
        "system_fingerprint": gateway.fingerprint,
    }


def _usage(jobs: Sequence[Job], counts: Sequence[Usage]) -> dict[str, Any]:
    """Every prompt counts once, however many choices it has: as it was read for the first of them. Tokens
    that the target has not chosen are told apart."""
    prompts: dict[int, Usage] = {}
    for job, count in zip(jobs, counts, strict=True):
        prompts.setdefault(job.prompt_number, count)
    output = sum(count.completion_tokens for count in counts)
    cached = sum(count.cached_tokens for count in prompts.values())
    edge = sum(count.edge_tokens for count in counts)
    return {
        **Usage(sum(count.prompt_tokens for count in prompts.values()), output, cached).to_dict(),
        **({"acespec": {"edge_tokens": edge}} if edge else {}),
    }
