"""EdgeRuntime: a draft bundle, a cloud, and text."""

from __future__ import annotations

import contextlib
import secrets
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.channel import Channel
from acespec_edge.control import Controller
from acespec_edge.drafting import Drafter, DrafterName, checked_drafter, load_drafter, lookup_drafter
from acespec_edge.errors import AcespecError, LinkError, PeerError, UsageError
from acespec_edge.generation import AsyncStream, Generation, Stream
from acespec_edge.modes import Commit, Run, drafter_alone, target_alone
from acespec_edge.policy import POLICIES, Policy, named_policy
from acespec_edge.prompt import Prompt
from acespec_edge.request import Mode, Options, checked_mode, make_request
from acespec_edge.result import Result
from acespec_edge.session import EdgeSession
from acespec_edge.speculation import MOST_NODES, speculate
from acespec_edge.transport import Connector, connect, local_connector, read_token

if TYPE_CHECKING:
    from typing_extensions import Unpack

_TURN_POLL: Final = 0.05
_CLOSE_TIMEOUT: Final = 5.0
_CONNECT_TIMEOUT: Final = 10.0


class EdgeRuntime:
    """Speculative decoding from this device: the bundle's model drafts, the cloud's target decides.

    Thread-safe; requests run one at a time in the order they get their turn. Use as a context manager, or
    close().
    """

    def __init__(
        self,
        bundle: str | Path | Bundle,
        cloud: str | Connector | None = None,
        *,
        target: str | None = None,
        token_file: str | Path | None = None,
        ca: str | Path | None = None,
        mode: Mode = "auto",
        threads: int = 1,
        policy: str | Policy = "auto",
        draft_length: int | None = None,
        width: int = 16,
        cache_mb: int = 32,
        context: int = 2048,
        timeout: float = 120.0,
        drafter: DrafterName | Drafter = "model",
    ) -> None:
        """Loads the drafter and connects, as far as ``mode`` needs them; another mode of a request does
        it then.

        ``bundle``: folder of a draft bundle. ``cloud``: ``ws(s)://`` address, "local" for a verifier in
        this process that serves ``target``, or a function that opens a Link. ``token_file``: holds the
        bearer token (else ``ACESPEC_TOKEN`` does). ``ca``: PEM file of a private authority. ``mode``:
        "auto" speculates, "cloud" streams from the target alone, "edge" runs the drafter alone.
        ``threads``: of the drafter. ``policy``: what speculation may do, or the name of one of
        ``policy.POLICIES``; "auto" takes whatever its estimates say is faster. ``draft_length``: chains of
        that length, instead of what the policy finds best. ``width``: tree nodes in one forward, at most.
        ``cache_mb``: MiB of keys and values for branches. ``context``: tokens
        the drafter holds; beyond it the target goes on alone. ``timeout``: seconds of silence after which
        the cloud counts as lost; the first token has more, by the length of the prompt. ``drafter``: "model"
        is the bundle's, "lookup" needs none and proposes how the text went on after the same tokens before,
        "both" puts both in one tree; or an object that is used instead.

        Raises UsageError for bad options, LinkError when the cloud cannot be reached, PeerError when it
        misbehaves, EngineError when the model does not load.
        """
        checked_mode(mode)
        for name, value, least in (
            ("threads", threads, 1),
            ("draft_length", 0 if draft_length is None else draft_length, 0),
            ("width", width, 1),
            ("cache_mb", cache_mb, 1),
            ("context", context, 2),
        ):
            if value < least:
                raise UsageError(f"{name} is {value}: it must be {least} or more")
        longest = MOST_NODES
        if draft_length is not None and draft_length > longest:
            raise UsageError(f"draft_length is {draft_length}: a draft holds {longest} tokens at most")
        if not timeout > 0:
            raise UsageError(f"timeout is {timeout}: it must be above 0 seconds")
        self._bundle = bundle if isinstance(bundle, Bundle) else Bundle.load(Path(bundle))
        self._mode: Mode = mode
        self._threads = threads
        self._cache_mb = cache_mb
        self._timeout = timeout
        self._drafts_by = checked_drafter(drafter) if isinstance(drafter, str) else "model"
        self._context = context if self._drafts_by == "lookup" else min(context, self._bundle.max_positions)
        self._control = Controller(_policy(policy, draft_length), width=width)
        self._connector = _connector(cloud, target, token_file, ca, timeout)
        self._drafter = None if isinstance(drafter, str) else drafter
        self._channel: Channel | None = None
        self._turn = threading.Lock()
        self._admission = threading.Lock()
        """Guards ``_closed`` and ``_running``: what close() does not find in there does not start."""
        self._closed = False
        self._running: weakref.WeakSet[Generation] = weakref.WeakSet()
        self._require_sides(mode)
        if mode != "cloud":
            self._loaded_drafter()
        # Last, so that nothing that fails leaves a connection behind.
        if mode != "edge":
            self._open_channel(threading.Event())

    @property
    def bundle(self) -> Bundle:
        return self._bundle

    @property
    def welcome(self) -> _core.Welcome | None:
        """What the cloud said of itself on the connection that is open now; None without one."""
        channel = self._channel
        return None if channel is None else channel.welcome

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Result:
        """Generates to the end.

        ``prompt``: text (one user turn when the bundle has a chat template, unless ``raw``), chat messages,
        or token ids. ``options``: see request.Options. Raises UsageError, LinkError (with ``partial``),
        PeerError, EngineError.
        """
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.result

    def generate_many(self, prompt: Prompt, *, n: int, **options: Unpack[Options]) -> list[Result]:
        """``n`` generations, one after the other, by seeds ``seed``, ``seed + 1``, ...: each is what
        generate() gives for its seed. The drafter reads the prompt once. Arguments and errors as there.
        """
        if n < 1:
            raise UsageError(f"n is {n}: it must be 1 or more")
        seed = options.pop("seed", None)
        if seed is None:
            seed = secrets.randbits(53)
        elif not 0 <= seed <= (1 << 64) - n:
            raise UsageError(f"seed is {seed}: with n = {n} it must be 0 to 2**64 - {n}")
        results = []
        for number in range(n):
            options["seed"] = seed + number
            results.append(self.generate(prompt, **options))
        return results

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """Starts generating; iterate for pieces, then read ``result``. Arguments and errors as for
        generate(): wrong arguments raise here, the rest while reading."""
        return Stream(self._generation(prompt, options))

    async def agenerate(self, prompt: Prompt, **options: Unpack[Options]) -> Result:
        """generate() without blocking the event loop."""
        async with self.astream(prompt, **options) as stream:
            async for _ in stream:
                pass
        return stream.result

    def astream(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream:
        """stream() for asyncio; call it on the event loop."""
        return AsyncStream(self._generation(prompt, options))

    def close(self) -> None:
        """Cancels what runs, waits for it, and ends the connection. More than once is fine."""
        with self._admission:
            self._closed = True
            running = list(self._running)
        for generation in running:
            generation.cancel()
        for generation in running:
            generation.join()
        # Without the turn, something is stuck in the model or in connecting: the rest ends all the same.
        taken = self._turn.acquire(timeout=_CLOSE_TIMEOUT)
        try:
            self._drop_channel("the device is done")
            self._drafter = None
        finally:
            if taken:
                self._turn.release()

    def __enter__(self) -> EdgeRuntime:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _generation(self, prompt: Prompt, options: Options) -> Generation:
        request = make_request(self._bundle, prompt, self._mode, **options)
        self._require_sides(request.mode)
        generation = Generation(self._serve, request, self._bundle.vocabulary_table)
        with self._admission:
            if self._closed:
                raise UsageError("this runtime is closed")
            self._running.add(generation)
        return generation

    @contextlib.contextmanager
    def _serve(self, run: Run) -> Iterator[Iterator[Commit]]:
        """One run's turn at the drafter and the cloud."""
        while not self._turn.acquire(timeout=_TURN_POLL):
            if run.cancelled.is_set():
                yield iter(())
                return
        try:
            yield self._commits(run)
        except (LinkError, PeerError) as error:
            # After a fault of this request alone the session goes on.
            if (channel := self._channel) is not None and not channel.idle:
                self._drop_channel(f"giving up: {error}")
            raise
        finally:
            self._abandon()
            self._turn.release()

    def _commits(self, run: Run) -> Iterator[Commit]:
        """What the run commits; nothing when it is cancelled before it begins."""
        if run.cancelled.is_set():
            return iter(())
        mode = run.request.mode
        if mode == "edge":
            return drafter_alone(run, self._loaded_drafter())
        drafter = self._loaded_drafter() if mode == "auto" else None
        channel = self._ready_channel(run.cancelled)
        if channel is None:
            return iter(())
        if drafter is None:
            return target_alone(run, channel, self._control)
        return speculate(run, channel, drafter, self._control, self._context)

    def _abandon(self) -> None:
        """Stops what the cloud still runs. A connection that does not take that is dropped, and no error: the
        run has its result."""
        if (channel := self._channel) is not None:
            try:
                channel.abandon()
            except AcespecError as error:
                self._drop_channel(f"giving up: {error}")

    def _ready_channel(self, cancelled: threading.Event) -> Channel | None:
        """The connection, made anew when the last one was lost; None when ``cancelled`` is set first."""
        if (channel := self._channel) is not None:
            try:
                return channel if channel.settle(cancelled) else None
            except AcespecError as error:
                # Whatever it is, it is about the requests before.
                self._drop_channel(f"giving up: {error}")
        return self._open_channel(cancelled)

    def _open_channel(self, cancelled: threading.Event) -> Channel | None:
        connector = self._require_cloud(self._mode)
        if cancelled.is_set():
            return None
        vocabulary = self._bundle.vocabulary_table
        session = EdgeSession(
            tokenizer=vocabulary.fingerprint,
            vocabulary=vocabulary.size,
            drafter=self._bundle.name,
            chunks=vocabulary.chunks,
        )
        channel = Channel(connector(), session, self._timeout)
        if not channel.greet(cancelled):
            return None
        self._channel = channel
        return channel

    def _drop_channel(self, reason: str) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close(reason)

    def _loaded_drafter(self) -> Drafter:
        if self._drafter is None and self._drafts_by == "lookup":
            self._drafter = lookup_drafter(self._bundle.vocabulary, context=self._context)
        elif self._drafter is None:
            self._drafter = load_drafter(
                self._bundle,
                context=self._context,
                cache_mb=self._cache_mb,
                threads=self._threads,
                lookup=self._drafts_by == "both",
            )
        return self._drafter

    def _require_sides(self, mode: Mode) -> None:
        if mode != "edge":
            self._require_cloud(mode)
        elif self._drafts_by == "lookup":
            raise UsageError("mode edge needs a model, and drafter 'lookup' has none: use 'model' or 'both'")

    def _require_cloud(self, mode: Mode) -> Connector:
        if self._connector is None:
            raise UsageError(
                f"mode {mode} needs a cloud: give cloud=URL, or use mode='edge' for the drafter alone"
            )
        return self._connector


def _policy(policy: str | Policy, draft_length: int | None) -> Policy:
    """A given length makes a policy that chooses by itself one of chains."""
    named = named_policy(policy)
    if draft_length is None:
        return named
    return replace(POLICIES["chain"] if named.send == "tree" else named, length=draft_length)


def _connector(
    cloud: str | Connector | None,
    target: str | None,
    token_file: str | Path | None,
    ca: str | Path | None,
    timeout: float,
) -> Connector | None:
    if target is not None and cloud != "local":
        raise UsageError(
            f"target is {target!r}, but only cloud='local' takes one: a remote cloud has its own"
        )
    if cloud is None or callable(cloud):
        return cloud
    if cloud == "local":
        if target is None:
            raise UsageError("cloud is 'local', so target must name the model to serve")
        return local_connector(target)
    token = read_token(None if token_file is None else Path(token_file))
    authority = None if ca is None else Path(ca)
    return lambda: connect(cloud, token=token, ca=authority, timeout=min(timeout, _CONNECT_TIMEOUT))
