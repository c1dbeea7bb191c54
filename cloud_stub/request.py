"""A running request: its committed tokens, the edge's tree, and which piece of work comes next."""

from __future__ import annotations

from dataclasses import dataclass, field

from acespec_edge import _core
from acespec_edge.errors import PeerError
from acespec_edge.mirror import Mirror
from acespec_edge.protocol import parents_from_offsets
from cloud_stub.fitting import check_mode, fits
from cloud_stub.judge import Terms
from cloud_stub.pending import Attempt, PendingDraft


@dataclass(frozen=True, slots=True)
class Bounds:
    """What of a request may wait for the model at once: live nodes, and drafts that came while it was at
    work.
    """

    max_nodes: int
    max_waiting: int


@dataclass(slots=True)
class Request:
    """``attempt``: the work in progress, if any. ``newest``: the newest draft received, ``answered``: the
    newest that a verdict has answered; rounds do not wrap here, and the Open is 0. ``rejected``: in residual
    mode the edge has to draw the next token. ``dropped``: drafts that left nothing to verify. Not
    thread-safe.
    """

    number: int
    ticket: int
    terms: Terms
    bounds: Bounds
    committed: list[int]
    free_run: bool
    attempt: Attempt | None = field(default_factory=lambda: Attempt(0))
    newest: int = 0
    answered: int = 0
    rejected: bool = False
    dropped: int = 0
    _mirror: Mirror = field(init=False)
    _waiting: list[PendingDraft] = field(default_factory=list)
    _asks: int = 0
    _arrived: float = 0.0
    _weights: dict[int, int] = field(default_factory=dict)
    _resampled: int | None = None
    _more_tail: bool = False
    _wants_hint: bool = False

    def __post_init__(self) -> None:
        self._mirror = Mirror(len(self.committed))

    def take(self, draft: _core.Draft, round: int, now: float) -> None:
        """Takes in a draft that is newer than all before it; ``next_work`` says what follows from it.

        Raises UsageError for one that is not of the request's mode, or out of turn in it, and PeerError for
        one outside the protocol's bounds.
        """
        length = len(self.committed)
        prompt, free = self.terms.prompt_length, self._mirror.next_node
        if not prompt <= draft.base <= length:
            raise PeerError(f"Draft.base is {draft.base}: {prompt} to {length} tokens are committed")
        tokens, weights = list(draft.tokens), list(draft.q)
        if tokens and draft.first_node < free:
            raise PeerError(f"Draft.first_node is {draft.first_node}: nodes before {free} have been sent")
        check_mode(draft, self.terms.mode)
        held, at_work = len(self._mirror), self.attempt is not None
        fitting = fits(draft, length, rejected=self.rejected, at_work=at_work, held=held)
        self.newest, self.free_run, self._arrived = round, draft.free_run, now
        self._wants_hint = draft.wants_hint
        if not fitting:
            self.dropped += 1
            return
        base = draft.base
        if draft.more_tail:
            self._more_tail = True
            return
        if draft.resampled >= 0:
            self._resampled, self.rejected = draft.resampled, False
            self.commit([draft.resampled])
            base += 1
        parents = parents_from_offsets(draft.first_node, len(tokens), draft.parent_offsets)
        live = self._mirror.insert(round, base, draft.first_node, tokens, parents)
        if weights:
            self._weights = {number: weight + 1 for number, weight in enumerate(weights, draft.first_node)}
        if not tokens:
            self._asks = max(self._asks, base)
        self._wait(PendingDraft(round, None if tokens else base), live=live)

    def _wait(self, draft: PendingDraft, *, live: bool) -> None:
        if not live and draft.asks != len(self.committed):
            self.dropped += 1
            return
        if len(self._mirror) > self.bounds.max_nodes:
            raise PeerError(
                f"{len(self._mirror)} nodes wait for a verdict: at most {self.bounds.max_nodes} may"
            )
        if len(self._waiting) >= self.bounds.max_waiting:
            raise PeerError(f"more than {self.bounds.max_waiting} drafts are waiting for a verdict")
        self._waiting.append(draft)

    def commit(self, tokens: list[int]) -> None:
        """The committed text grows."""
        self.committed += tokens
        self._mirror.commit(tokens)

    def reject(self) -> None:
        """Leaves the next token to the edge: what is below it is void."""
        self.rejected = True
        self._mirror.clear()

    def next_work(self, now: float) -> tuple[Attempt, float] | None:
        """Begins the next piece of work, if there is any and none runs; returns it, and since when it has
        waited.
        """
        if self.attempt is not None:
            return None
        self.attempt = self._next()
        self._settle()
        if self.attempt is None:
            return None
        return self.attempt, self._arrived if self.newest != self.answered else now

    def _next(self) -> Attempt | None:
        if self._more_tail:
            self._more_tail = False
            return Attempt(self.newest, more_tail=True)
        if self.rejected:
            return None
        if self._resampled is None and not (
            len(self._mirror) > 0 or self._asks == len(self.committed) or self.free_run
        ):
            return None
        length, resampled = len(self.committed), self._resampled
        self._resampled = None
        if resampled is not None:
            finish = self.terms.finish(resampled, length)
            if finish != _core.Finish.none:
                return Attempt(self.newest, resampled=resampled, finish=finish)
        tree = self._mirror.tree(deepest=self.terms.end - length - 1)
        weights = [self._weights[node] for node in tree.nodes] if self._weights else []
        return Attempt(
            self.newest,
            tree.nodes,
            tree.tokens,
            tree.parents,
            weights,
            resampled,
            hint=self._wants_hint,
        )

    def _settle(self) -> None:
        """Drafts that are neither part of the work that begins nor asked for it have been dropped."""
        rounds, length = self._mirror.rounds(), len(self.committed)
        self.dropped += sum(draft.round not in rounds and draft.asks != length for draft in self._waiting)
        self._waiting.clear()
