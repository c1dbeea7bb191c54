"""EdgeRuntime: a draft bundle, a cloud, and text."""

from __future__ import annotations

import contextlib
import secrets
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.channel import Channel
from acespec_edge.control import Controller
from acespec_edge.cores import Threads, cores, placement
from acespec_edge.drafting import Drafter, DrafterName
from acespec_edge.endpoints import Endpoint
from acespec_edge.errors import LinkError, PeerError, UsageError
from acespec_edge.generation import AsyncStream, Generation, Stream
from acespec_edge.known_contexts import KnownContexts
from acespec_edge.local_drafter import LocalDrafter
from acespec_edge.modes import Commit, Run, drafter_alone, target_alone
from acespec_edge.policy import Policy, Power, at_power, named_policy, of_length
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
        threads: Threads = 1,
        power: Power = "full",
        policy: str | Policy = "auto",
        draft_length: int | None = None,
        width: int = 16,
        cache_mb: int = 32,
        context: int = 2048,
        timeout: float = 120.0,
        reconnect_for: float = 60.0,
        offline_after: float | None = None,
        on_link: Callable[[LinkEvent], None] | None = None,
        drafter: DrafterName | Drafter = "model",
    ) -> None:
        """Loads the drafter and connects, as far as ``mode`` needs them; another mode of a request does
        it then.

        ``bundle``: folder of a draft bundle. ``cloud``: ``ws(s)://`` address, "local" for a cloud in
        this process that serves ``target``, a function that opens a Link, or several addresses, of which
        the best that answers is taken (see Endpoints; "URL#cost=2" is one of another weight). ``token_file``:
        holds the bearer token (else ``ACESPEC_TOKEN`` does). ``ca``: PEM file of a private authority.
        ``client_cert`` and ``client_key``: PEM files of this device's certificate. ``mode``:
        "auto" speculates, "cloud" streams from the target alone, "edge" runs the drafter alone.
        ``threads``: of the drafter, on the big cores where there are little ones too; "auto": one for each
        big core, four at most. ``power``: "save" drafts ahead only what is worth its energy, the less the
        faster the network, and lets no thread spin. ``policy``: what speculation may do, or the name of one
        of ``policy.POLICIES``; "auto" takes whatever its estimates say is faster. ``draft_length``: chains of
        that length, instead of what the policy finds best. ``width``: tree nodes in one forward, at most.
        ``cache_mb``: MiB of keys and values for branches. ``context``: tokens
        the drafter holds; beyond it the target goes on alone. ``timeout``: seconds of silence after which
        the cloud counts as lost; the first token has more, by the length of the prompt. ``reconnect_for``:
        seconds for which a request tries to get a lost connection back, to go on where it was; 0: it ends at
        once. ``offline_after``: seconds without a connection after which the drafter goes on alone, in mode
        "auto" and without ``logprobs``, until there is one again; None: never, so that every token is the
        target's. ``on_link``: hears of connections that are lost and found again, on the request's thread,
        and must not raise. ``drafter``: "model" is the bundle's, "lookup" needs none and proposes how the
        text went on after the same tokens before, "both" puts both in one tree; or an object that is used
        instead.

        Raises UsageError for bad options, LinkError when the cloud cannot be reached, PeerError when it
        misbehaves, EngineError when the model does not load.
        """
        checked_mode(mode)
        for name, value, least in (
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
        endurance = Endurance(reconnect_for, offline_after)
        self._bundle = bundle if isinstance(bundle, Bundle) else Bundle.load(Path(bundle))
        self._mode: Mode = mode
        self._drafter = LocalDrafter(
            self._bundle,
            drafter,
            placement(threads, cores()),
            context=context,
            cache_mb=cache_mb,
            spinning=power == "full",
        )
        self._endurance = endurance
        self._tell = on_link or (lambda event: None)
        chosen = of_length(named_policy(policy), draft_length)
        self._control = Controller(at_power(chosen, power), width=width)
        self.totals = Totals(self._control)
        """What this runtime has done, and what it expects; to be read from any thread."""
        files = {"token_file": token_file, "ca": ca, "client_cert": client_cert, "client_key": client_key}
        given: dict[str, Any] = {name: Path(file) for name, file in files.items() if file is not None}
        connector = connector_to(cloud, target, Endpoint("", **given), timeout)
        self._contexts = KnownContexts()
        self._uplink = (
            None if connector is None else Uplink(self.totals.counted(connector), self._session, timeout)
        )
        self._turn = threading.Lock()
        self._admission = threading.Lock()
        """Guards ``_closed`` and ``_running``: what close() does not find in there does not start."""
        self._closed = False
        self._running: weakref.WeakSet[Generation] = weakref.WeakSet()
        self._require_sides(mode)
        if mode != "cloud":
            self._drafter.get()
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
            self._drafter.release()
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
            offline = self._drafter.get()
            self._drafter.keep_to_cores()
            yield from drafter_alone(run, offline)
            return
        drafter = self._drafter.get() if mode == "auto" else None
        uplink, control, context = self._require_cloud(mode), self._control, self._drafter.context

        def decode(rest: Run, channel: Channel) -> Iterator[Commit]:
            if drafter is None:
                return target_alone(rest, channel, control)
            # Only now: threads that were started on the way would have been kept there too.
            self._drafter.keep_to_cores()
            return speculate(rest, channel, drafter, control, context)

        def alone(rest: Run) -> Iterator[Commit]:
            if drafter is None or len(rest.request.prompt) >= context:
                return iter((Commit([], "context"),))
            return drafter_alone(rest, drafter)

        writes = drafter is not None and self._drafter.writes
        choice = alone if writes and run.request.logprobs is None else None
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

    def _require_sides(self, mode: Mode) -> None:
        if mode != "edge":
            self._require_cloud(mode)
        elif not self._drafter.writes:
            raise UsageError("mode edge needs a model, and drafter 'lookup' has none: use 'model' or 'both'")

    def _require_cloud(self, mode: Mode) -> Uplink:
        if self._uplink is None:
            raise UsageError(
                f"mode {mode} needs a cloud: give cloud=URL, or use mode='edge' for the drafter alone"
            )
        return self._uplink
