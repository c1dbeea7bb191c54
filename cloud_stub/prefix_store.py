"""KV of requests that have ended, kept for those that begin alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from acespec_edge.prefix import MOST_TEXTS, Text, common_prefix, digest_of, takes_over, text_of
from cloud_stub.budget import KvBudget
from cloud_stub.scheduler import Job, Units
from cloud_stub.verifiers.base import KeptHandle


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose contexts they are. ``identity``: who the edge has proved to be, empty where nobody has to prove
    anything; ``key``: of the session, which only its edge knows.
    """

    identity: str
    key: bytes


class Holding:
    """The KV of one request, running or kept. ``handle``: None before anything was read and after the end; it
    is touched by the scheduler's thread alone.

    What it holds is, from the first token on, the text that it is kept for, as far as it goes.
    """

    def __init__(self) -> None:
        self.handle: KeptHandle | None = None


@dataclass(slots=True)
class _Kept:
    owner: Owner
    holding: Holding
    text: Text
    until: float


class PrefixStore:
    """Admits requests, and keeps what they leave.

    Kept KV counts as free: when a request needs its room the least recently used goes. ``reserved`` of the
    budget and ``tokens`` of the store never exceed the capacity together. An owner has at most 8 contexts,
    found by comparing: O(8 prompts) for each request. A kept handle goes to one request at a time; work on it
    is queued in the order of the calls, so whoever gets it, or its room, is queued behind its last user.

    Thread-safe. ``seconds``: how long a context is kept, 0 for not at all; ``submit`` queues work for the
    scheduler's thread.
    """

    def __init__(
        self,
        budget: KvBudget,
        seconds: float,
        submit: Callable[[Units], Job],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget = budget
        self._seconds = seconds
        self._submit = submit
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: list[_Kept] = []  # the most recently used last
        self._tokens = 0

    @property
    def tokens(self) -> int:
        """Tokens kept for requests to come."""
        return self._tokens

    def admit(self, owner: Owner, prompt: Sequence[int], tokens: int) -> Holding | None:
        """Reserves ``tokens`` for a request, and gives it what is kept of its prompt, all but the last token
        at most: by the time its work runs the handle holds that much. None, and nothing is reserved, when the
        running requests leave no room.
        """
        text = text_of(prompt[:-1])
        with self._lock:
            self._expire()
            if not self._budget.take(tokens):
                return None
            kept, common = self._nearest(owner, text)
            holding = Holding()
            if kept is not None and takes_over(common, len(kept.text)):
                self._remove(kept)
                holding = kept.holding
                self._submit(_crop(holding, common))
            elif kept is not None:
                self._kept.remove(kept)
                self._kept.append(kept)
                self._submit(_branch(kept.holding, holding, common))
            while self._budget.reserved + self._tokens > self._budget.capacity:
                self._drop(self._kept[0])
        return holding

    def keep(self, owner: Owner, holding: Holding, text: Sequence[int], reserved: int) -> None:
        """A request has ended: what was reserved for it is free again, and its KV is kept, which is that of
        the beginning of ``text``.
        """
        if self._seconds <= 0:
            self.free(holding, reserved)
            return
        with self._lock:
            self._budget.give(reserved)
            self._kept.append(_Kept(owner, holding, text_of(text), self._clock() + self._seconds))
            self._tokens += len(text)
            of_owner = [kept for kept in self._kept if kept.owner == owner]
            for kept in of_owner[:-MOST_TEXTS]:
                self._drop(kept)

    def free(self, holding: Holding, reserved: int) -> None:
        """A request has ended, and nothing of it is kept."""
        with self._lock:
            self._submit(_free(holding))
            self._budget.give(reserved)

    def beginning(self, owner: Owner, count: int, digest: bytes) -> list[int] | None:
        """The first ``count`` tokens of a kept text whose digest this is."""
        with self._lock:
            self._expire()
            texts = [kept.text for kept in reversed(self._kept) if kept.owner == owner]
        for text in texts:
            if len(text) >= count and digest_of(text[:count]) == digest:
                return text[:count].tolist()
        return None

    def holds(self, owner: Owner) -> bool:
        """Whether anything is kept of this owner's."""
        with self._lock:
            self._expire()
            return any(kept.owner == owner for kept in self._kept)

    def expire(self) -> None:
        """Drops what has been kept for long enough. To be called now and then."""
        with self._lock:
            self._expire()

    def _expire(self) -> None:
        now = self._clock()
        for kept in [kept for kept in self._kept if kept.until <= now]:
            self._drop(kept)

    def _nearest(self, owner: Owner, text: Text) -> tuple[_Kept | None, int]:
        """The context with the most in common, the newest of equals."""
        nearest, most = None, 0
        for kept in reversed(self._kept):
            common = common_prefix(kept.text, text) if kept.owner == owner else 0
            if common > most:
                nearest, most = kept, common
        return nearest, most

    def _drop(self, kept: _Kept) -> None:
        self._remove(kept)
        self._submit(_free(kept.holding))

    def _remove(self, kept: _Kept) -> None:
        self._kept.remove(kept)
        self._tokens -= len(kept.text)


def _crop(holding: Holding, length: int) -> Units:
    if holding.handle is not None:
        holding.handle.crop(min(length, holding.handle.length))
    return
    yield


def _branch(source: Holding, holding: Holding, length: int) -> Units:
    if source.handle is not None:
        holding.handle = source.handle.branch(min(length, source.handle.length))
    return
    yield


def _free(holding: Holding) -> Units:
    if holding.handle is not None:
        holding.handle.close()
        holding.handle = None
    return
    yield
