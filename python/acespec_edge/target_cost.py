"""What the target takes: for a plain step, and for verifications by their nodes."""

from __future__ import annotations

from typing import Final

from acespec_edge import _core

_INSTANT: Final = 1e-6
"""Seconds that anything takes at least, whatever a cloud says of itself."""

_FIRST: Final = (0.05, 0.02)
"""Seconds of a verification of one node, and the share of it that a further one adds: of a target nothing is
known of."""

_MOST: Final = 256
"""Nodes up to which verifications are told apart."""

_USUAL: Final = 16
"""Nodes by whose verification is said what a node takes."""

_FIRST_NODES: Final = 8
"""Nodes of the first draft at most: nobody knows yet what verifying them takes."""

_KNOWN: Final = 4
"""Verifications after which it is known what they take: rounds before that were badly chosen."""


class TargetCost:
    """A curve over the nodes of a verification, learned while it is paid, and a mean over plain steps: on
    some machines one token is another kind of product than a few, and far cheaper. Times are seconds.
    O(nodes) an observation, else O(1). Not thread-safe.
    """

    def __init__(self) -> None:
        self._curve = _core.WidthCurve(_MOST, *_FIRST)
        self._step: float | None = None
        self._count = 0
        self._smallest, self._largest = _MOST, _FIRST_NODES // 2
        self._seconds = self._by_nodes()
        self.per_step = 1.0
        """Tokens of a plain step: more than one where the cloud drafts for itself."""

    def stepped(self, tokens: int, seconds: float) -> None:
        """Takes a plain step that yielded ``tokens`` tokens."""
        seconds = max(_INSTANT, seconds)
        self._step = seconds if self._step is None else self._step + (seconds - self._step) / 8
        if tokens:
            self.per_step += (tokens - self.per_step) / 8
        self._seconds = self._by_nodes()

    def verified(self, nodes: int, seconds: float) -> None:
        """Takes a verification of ``nodes`` nodes, one or more."""
        self._curve.observe(min(nodes, _MOST), max(_INSTANT, seconds))
        self._count += 1
        self._smallest, self._largest = min(self._smallest, nodes), max(self._largest, nodes)
        self._seconds = self._by_nodes()

    @property
    def known(self) -> bool:
        """Whether enough verifications have told what they take."""
        return self._count > _KNOWN

    @property
    def step(self) -> float:
        """Of a plain step."""
        return self._seconds[0] if self._step is None else self._step

    def verifying(self, nodes: int) -> float:
        """Of a verification; of none, that of a plain step or of one node, whatever is less."""
        return self._seconds[min(nodes, _MOST)]

    @property
    def per_node(self) -> float:
        """What a node more takes, on the average over a draft of the usual size."""
        return (self.verifying(_USUAL) - self.verifying(1)) / (_USUAL - 1)

    @property
    def cap(self) -> int:
        """Most nodes of a draft: twice as many as have been verified at once before."""
        return 2 * self._largest

    def why(self) -> str:
        """The estimates, in half a sentence."""
        return (
            f"verifying {1e3 * self.verifying(1):.0f} ms for 1 node and "
            f"{1e3 * self.verifying(_USUAL):.0f} ms for {_USUAL}"
        )

    def _by_nodes(self) -> list[float]:
        """Of 0 to ``_MOST`` nodes: of none as much as a plain step, and of fewer than have been tried no
        less. Until there has been a verification, a plain step tells what one takes."""
        curve = self._curve.table()
        if self._step is None:
            return [curve[0], *curve]
        if not self._count:
            return [self._step, *(seconds * self._step / curve[0] for seconds in curve)]
        # A cloud that drafts for itself takes longer for a step, and commits more.
        tried = self._smallest - 1
        step = min(self._step, curve[tried])
        return [step, *(max(step, seconds) for seconds in curve[:tried]), *curve[tried:]]
