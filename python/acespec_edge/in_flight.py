"""What the edge has sent of a request, and what the cloud may therefore say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from acespec_edge import _core
from acespec_edge.errors import PeerError, UsageError
from acespec_edge.mirror import Mirror, Tree
from acespec_edge.protocol import FARTHEST_PARENT, depths, path_to, wire_round
from acespec_edge.session_events import Committed

_MOST_UNANSWERED: Final = 64
"""Drafts that a cloud lets wait for a verdict."""


@dataclass(frozen=True, slots=True)
class SentDraft:
    """A draft (or the Open, as number 0) without its nodes. ``number``: its round, not wrapped; ``size``:
    bytes of its message; ``at``: when it was sent.

    ``asks``: the committed length at which it wants an answer though it has no nodes. ``drawn``: the token
    that it committed itself, if any; ``more_tail``: it only asks for more samples to draw with.
    """

    number: int
    free_run: bool
    at: float
    size: int
    asks: int | None = None
    opening: bool = False
    drawn: tuple[int, ...] = ()
    more_tail: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """What a verdict answers: all drafts up to ``number``. ``sent``: the newest of these, unless an earlier
    verdict has answered it; ``free_run``: whether it lets the cloud go on by itself. ``tree``: the
    nodes that the cloud had.
    """

    number: int
    sent: SentDraft | None
    free_run: bool
    tree: Tree

    def verified(self, room: int) -> int:
        """How many nodes were verified, with ``room`` tokens until the request's end: a node whose token
        would be the last, or lie past it, is not.
        """
        return sum(depth < room for depth in depths(self.tree.parents))

    def path(self, node: int) -> list[int]:
        """Tokens from the committed end down to ``node``; raises PeerError when the cloud did not have it."""
        if node == 0:
            return []
        if node not in self.tree.nodes:
            raise PeerError(f"verdict accepts node {node}, which is not in the tree that it answers")
        return [self.tree.tokens[index] for index in path_to(self.tree.nodes.index(node), self.tree.parents)]


def committed_by(
    verdict: _core.Verdict, answered: Answered, tokens: list[int], *, room: int, size: int, at: float
) -> Committed:
    """The event of a verdict of ``size`` bytes that arrived ``at`` and commits ``tokens``. ``room``: tokens
    until the request's end before it.
    """
    sent = answered.sent
    idle = not tokens and verdict.sparse is None  # what a draft resampled had ended the request
    queue, verify = 1e-6 * verdict.queue_us, 1e-6 * verdict.verify_us
    return Committed(
        tokens,
        len(tokens) - len(verdict.tokens),
        verdict.finish,
        at,
        verdict.logprobs,
        verdict.sparse,
        round_trip=None if sent is None else max(0.0, at - sent.at - queue - verify),
        rough=sent is not None and sent.opening,
        bytes_up=0 if sent is None else sent.size,
        bytes_down=size,
        verify=verify,
        queue=queue,
        nodes=0 if idle else answered.verified(room),
        reused=verdict.reused,
        answered=sent is not None,
        hint=list(verdict.hint),
    )


class InFlight:
    """The drafts of one request that may still be answered, and the mirror of the cloud's tree.

    The cloud may lag behind what was sent, and this side behind what was committed; but the nodes of the
    drafts up to the one that a verdict names are, when the verdict arrives, those that the cloud had when
    it began. So this side knows what may be accepted, and whether anything is still to come. Not
    thread-safe.
    """

    def __init__(self, length: int, opening: SentDraft) -> None:
        """``length``: of the prompt."""
        self.mirror = Mirror(length)
        self.rejected = False
        self._sent = [opening]
        self._newest = opening
        self._answered = 0
        self._runs_free = False
        self._settled = -1

    @property
    def newest(self) -> int:
        """Number of the newest draft."""
        return self._newest.number

    @property
    def owed(self) -> bool:
        """Whether a verdict will come that a draft (or the Open) asked for."""
        return len(self.mirror) > 0 or self._is_asked(self._newest.number)

    @property
    def waiting(self) -> bool:
        """Whether a verdict will come without another draft. One may come even if not: a plain step that
        the cloud took before it had heard of the newest draft.
        """
        return self.owed or self.runs_free

    @property
    def runs_free(self) -> bool:
        """Whether the newest draft lets the cloud go on by itself."""
        return self._newest.free_run and not self.rejected

    @property
    def unanswered(self) -> int:
        """Drafts that no verdict has answered; 0 when none is to be waited for."""
        return sum(sent.number > self._settled for sent in self._sent)

    def check_room(self, nodes: int, max_nodes: int, *, alone: bool) -> None:
        """Raises UsageError when a draft of ``nodes`` nodes must not be sent now: the cloud has room for
        ``max_nodes``. ``alone``: a draft waits for the verdict of the one before.
        """
        if alone and self.owed:
            raise UsageError(
                f"draft of round {self.newest + 1}: round {self.newest} has no verdict yet, and residual "
                "mode takes one draft at a time"
            )
        if len(self.mirror) + nodes > max_nodes:
            raise UsageError(
                f"draft of {nodes} nodes: the cloud takes {max_nodes}, and may still hold {len(self.mirror)}"
            )
        if self.unanswered >= _MOST_UNANSWERED:
            raise UsageError(
                f"draft of round {self.newest + 1}: {self.unanswered} drafts have no verdict yet, and no "
                "more may wait for one"
            )

    def check_parents(self, count: int, parents: Sequence[int]) -> None:
        """Raises UsageError unless ``parents`` can be those of the next ``count`` nodes."""
        if len(parents) != count:
            raise UsageError(f"draft of {count} nodes has {len(parents)} parents: one each would be right")
        first = self.mirror.next_node
        for number, parent in enumerate(parents, first):
            nearest = max(1, number - FARTHEST_PARENT)
            near = nearest <= parent < number
            if parent != 0 and not (near and (parent >= first or parent in self.mirror)):
                raise UsageError(
                    f"draft: the parent of node {number} is {parent}; 0 (the last committed token), or a "
                    f"node in flight from {nearest} to {number - 1}, would be right"
                )

    def send(self, sent: SentDraft, first_node: int, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Takes a draft on the present committed length, behind what it has ``drawn``."""
        self.mirror.commit(sent.drawn)
        self.mirror.insert(sent.number, self.mirror.length, first_node, tokens, parents)
        self._sent.append(sent)
        self._newest = sent
        if sent.drawn:
            self.rejected = False

    def repeat(self, sizes: Sequence[int], at: float) -> None:
        """All of it, of which no verdict has answered anything, is sent once more, in messages of these
        ``sizes``.
        """
        sent = zip(self._sent, sizes, strict=True)
        self._sent = [replace(draft, size=size, at=at) for draft, size in sent]
        self._newest = self._sent[-1]

    def answered_by(self, round_number: int) -> Answered:
        """What a verdict with this round answers; changes nothing. Raises PeerError when there can be no such
        verdict.
        """
        sent = next((sent for sent in self._sent if wire_round(sent.number) == round_number), None)
        if sent is not None:
            number, free_run = sent.number, sent.free_run
        elif round_number == wire_round(self._answered):
            number, free_run = self._answered, self._runs_free
        else:
            raise self._unexpected(round_number)
        tree = self.mirror.tree(round=number)
        has_work = bool(tree.nodes) or self._is_asked(number) or (free_run and not self.rejected)
        if not has_work or (self._opens and number > 0):
            raise self._unexpected(round_number)
        return Answered(number, sent, free_run, tree)

    def ended_by(self, round_number: int) -> Answered:
        """The same for the end of a cancelled request, which repeats the round of the verdict before it."""
        if round_number != wire_round(self._answered):
            raise self._unexpected(round_number)
        return Answered(self._answered, None, False, Tree([], [], []))

    def commit(self, answered: Answered, tokens: Sequence[int], *, rejected: bool) -> None:
        """Takes what a verdict committed; ``rejected``: it leaves the next token to this side."""
        self.mirror.commit(tokens)
        if rejected:
            self.mirror.clear()
        self.rejected = rejected
        self._answered, self._runs_free = answered.number, answered.free_run
        self._sent = [sent for sent in self._sent if sent.number > answered.number]
        if not self.waiting:
            # The cloud drops all of them; only a plain step that one of them allowed may be under way.
            self._settled = self._newest.number
            self._sent = [sent for sent in self._sent if sent.free_run]

    def end(self) -> None:
        """The request is over: the cloud has dropped what it held of it."""
        self.mirror.clear()
        self._sent = []

    @property
    def _opens(self) -> bool:
        return bool(self._sent) and self._sent[0].opening

    def _is_asked(self, newest: int) -> bool:
        length = self.mirror.length
        return any(sent.asks == length for sent in self._sent if sent.number <= newest)

    def _unexpected(self, round_number: int) -> PeerError:
        rounds = [wire_round(sent.number) for sent in self._sent]
        expected = f"round {', '.join(map(str, rounds))}" if rounds else "no verdict"
        return PeerError(f"verdict of round {round_number}: {expected} was expected")
