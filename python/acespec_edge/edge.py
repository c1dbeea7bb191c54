"""EdgeRuntime: a draft bundle, a cloud, and text."""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.channel import Channel
from acespec_edge.control import Controller
from acespec_edge.drafting import Drafter, load_drafter
from acespec_edge.endpoints import Endpoint
from acespec_edge.errors import LinkError, PeerError, UsageError
from acespec_edge.generation import AsyncStream, Generation, Stream
from acespec_edge.known_contexts import KnownContexts
from acespec_edge.modes import Commit, Run, drafter_alone, target_alone
from acespec_edge.policy import POLICIES, Policy, named_policy
from acespec_edge.prompt import Prompt
from acespec_edge.request import Mode, Options, checked_mode, make_request
from acespec_edge.result import Result
from acespec_edge.resumption import Endurance, LinkEvent, Resumption
from acespec_edge.routing import connector_to
from acespec_edge.session import EdgeSession
from acespec_edge.speculation import MOST_NODES, speculate
from acespec_edge.totals import Totals
from acespec_edge.transport import Connector
from acespec_edge.uplink import Uplink

if TYPE_CHECKING:
    from typing_extensions import Unpack

_TURN_POLL: Final = 0.05
_CLOSE_TIMEOUT: Final = 5.0


class EdgeRuntime:
    """Speculative decoding from this device: the bundle's model drafts, the cloud's target decides.

    Thread-safe; requests run one at a time in the order they get their turn. Use as a context manager, or
    close().
    """

    def __init__(
        self,
        bundle: str | Path | Bundle,
        cloud: str | Endpoint | Connector | Sequence[str | Endpoint] | None = None,
        *,
        target: str | None = None,
        token_file: str | Path | None = None,
        ca: str | Path | None = None,
        client_cert: str | Path | None = None,
        client_key: str | Path | None = None,
        mode: Mode = "auto",
        threads: int = 1,
        policy: str | Policy = "auto",
        draft_length: int | None = None,
        width: int = 16,
        cache_mb: int = 32,
        context: int = 2048,
        timeout: float = 120.0,
        reconnect_for: float = 60.0,
        offline_after: float | None = None,
        on_link: Callable[[LinkEvent], None] | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """Loads the drafter and connects, as far as ``mode`` needs them; another mode of a request does
        it then.

        ``bundle``: folder of a draft bundle. ``cloud``: ``ws(s)://`` address, "local" for a verifier in
        this process that serves ``target``, a function that opens a Link, or several addresses, of which
        the best that answers is taken (see Endpoints; "URL#cost=2" is one of another weight). ``token_file``:
        holds the bearer token (else ``ACESPEC_TOKEN`` does). ``ca``: PEM file of a private authority.
        ``client_cert`` and ``client_key``: PEM files of this device's certificate. ``mode``:
        "auto" speculates, "cloud" streams from the target alone, "edge" runs the drafter alone.
        ``threads``: of the drafter. ``policy``: what speculation may do, or the name of one of
        ``policy.POLICIES``; "auto" takes whatever its estimates say is faster. ``draft_length``: chains of
        that length, instead of what the policy finds best. ``width``: tree nodes in one forward, at most.
        ``cache_mb``: MiB of keys and values for branches. ``context``: tokens
        the drafter holds; beyond it the target goes on alone. ``timeout``: seconds of silence after which
        the cloud counts as lost; the first token has more, by the length of the prompt. ``reconnect_for``:
        seconds for which a request tries to get a lost connection back, to go on where it was; 0: it ends at
        once. ``offline_after``: seconds without a connection after which the drafter goes on alone, in mode
        "auto" and without ``logprobs``, until there is one again; None: never, so that every token is the
        target's. ``on_link``: hears of connections that are lost and found again, on the request's thread,
        and must not raise. ``drafter``: used instead of the bundle's own model.

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
        if not 0 <= reconnect_for < math.inf:
            raise UsageError(f"reconnect_for is {reconnect_for}: it must be 0 or more seconds")
        if offline_after is not None and not 0 <= offline_after < math.inf:
            raise UsageError(f"offline_after is {offline_after}: it must be 0 or more seconds, or None")
        self._bundle = bundle if isinstance(bundle, Bundle) else Bundle.load(Path(bundle))
        self._mode: Mode = mode
        self._threads = threads
        self._cache_mb = cache_mb
        self._endurance = Endurance(reconnect_for, offline_after)
        self._tell = on_link or (lambda event: None)
        self._context = min(context, self._bundle.max_positions)
        self._control = Controller(_policy(policy, draft_length), width=width)
        self.totals = Totals(self._control)
        """What this runtime has done, and what it expects; to be read from any thread."""
        files = {"token_file": token_file, "ca": ca, "client_cert": client_cert, "client_key": client_key}
        given: dict[str, Any] = {name: Path(file) for name, file in files.items() if file is not None}
        connector = connector_to(cloud, target, Endpoint("", **given), timeout)
        self._contexts = KnownContexts()
        self._uplink = (
            None if connector is None else Uplink(connector, self._session, timeout, self.totals.connected)
        )
        self._drafter = drafter
        self._turn = threading.Lock()
        self._admission = threading.Lock()
        """Guards ``_closed`` and ``_running``: what close() does not find in there does not start."""
        self._closed = False
        self._running: weakref.WeakSet[Generation] = weakref.WeakSet()
        if mode != "edge":
            self._require_cloud(mode)
        if mode != "cloud":
            self._loaded_drafter()
        # Last, so that nothing that fails leaves a connection behind.
        if mode != "edge":
            self._connect(self._require_cloud(mode))

    @property
    def bundle(self) -> Bundle:
        return self._bundle

    @property
    def welcome(self) -> _core.Welcome | None:
        """What the cloud said of itself on the connection that is open now; None without one."""
        return None if self._uplink is None else self._uplink.welcome

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
            if self._uplink is not None:
                self._uplink.drop("the device is done")
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
        if request.mode != "edge":
            self._require_cloud(request.mode)
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
        commits = self._commits(run)
        try:
            with self.totals.counting(run.request.mode, run.meter):
                yield self.totals.watched(commits)
        except (LinkError, PeerError) as error:
            # After a fault of this request alone the session goes on.
            if self._uplink is not None:
                self._uplink.drop_unless_idle(f"giving up: {error}")
            raise
        finally:
            commits.close()
            if self._uplink is not None:
                self._uplink.abandon()
            self._turn.release()

    def _commits(self, run: Run) -> Generator[Commit, None, None]:
        """What the run commits; nothing when it is cancelled before it begins."""
        if run.cancelled.is_set():
            return
        mode = run.request.mode
        if mode == "edge":
            yield from drafter_alone(run, self._loaded_drafter())
            return
        drafter = self._loaded_drafter() if mode == "auto" else None
        uplink, control, context = self._require_cloud(mode), self._control, self._context

        def decode(rest: Run, channel: Channel) -> Iterator[Commit]:
            if drafter is None:
                return target_alone(rest, channel, control)
            return speculate(rest, channel, drafter, control, context)

        def alone(rest: Run) -> Iterator[Commit]:
            if drafter is None or len(rest.request.prompt) >= context:
                return iter((Commit([], "context"),))
            return drafter_alone(rest, drafter)

        choice = None if drafter is None or run.request.logprobs is not None else alone
        yield from Resumption(run, uplink, decode, choice, self._endurance, self._tell).commits()

    def _session(self) -> EdgeSession:
        vocabulary = self._bundle.vocabulary_table
        return EdgeSession(
            tokenizer=vocabulary.fingerprint,
            vocabulary=vocabulary.size,
            drafter=self._bundle.name,
            chunks=vocabulary.chunks,
            contexts=self._contexts,
        )

    def _connect(self, uplink: Uplink) -> None:
        """The first connection. Who may go on alone may start so, too."""
        try:
            channel = uplink.connect(threading.Event())
        except LinkError as error:
            if self._endurance.offline_after is None:
                raise
            self._tell(LinkEvent("lost", 0.0, str(error)))
            return
        assert channel is not None
        uplink.adopt(channel)

    def _loaded_drafter(self) -> Drafter:
        if self._drafter is None:
            self._drafter = load_drafter(
                self._bundle, context=self._context, cache_mb=self._cache_mb, threads=self._threads
            )
        return self._drafter

    def _require_cloud(self, mode: Mode) -> Uplink:
        if self._uplink is None:
            raise UsageError(
                f"mode {mode} needs a cloud: give cloud=URL, or use mode='edge' for the drafter alone"
            )
        return self._uplink


def _policy(policy: str | Policy, draft_length: int | None) -> Policy:
    """A given length makes a policy that chooses by itself one of chains."""
    named = named_policy(policy)
    if draft_length is None:
        return named
    return replace(POLICIES["chain"] if named.send == "tree" else named, length=draft_length)
