"""What a target model must offer to be served.

Between calls a handle that has committed tokens ``c[0..n-1]`` holds the KV of all but the last one, the
*tip*: its logits are not known yet. A verification therefore forwards ``[tip, nodes...]`` at once, and
the row of the tip decides about the first level of the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from acespec_edge._core import SamplingRules
from acespec_edge.vocabulary import Vocabulary

Rows = npt.NDArray[np.float32]


class Handle(Protocol):
    """The KV of one request. Used by one thread at a time, the scheduler's."""

    @property
    def length(self) -> int:
        """Tokens whose KV is held and committed."""

    def prefill(self, tokens: Sequence[int]) -> Rows:
        """Appends ``tokens`` (at least one) to the context; returns the logits of the last, float32 [1, V].

        A long prompt may come in several calls.
        """

    def verify(self, tip: int, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        """Logits after the tip and after each node, float32 [1 + len(tokens), V], from one forward.

        ``parents``: index into ``tokens`` per node, -1 for children of the tip; parents come first. A
        node sees the context, the tip and its own ancestors. Must be followed by ``keep``.
        """

    def keep(self, path: Sequence[int]) -> None:
        """Commits the KV of the tip and of the nodes in ``path`` (from the first level down), drops the
        rest.

        The cost does not depend on the length of the context.
        """

    def close(self) -> None:
        """Frees the KV. The handle is not used afterwards."""


class KeptHandle(Handle, Protocol):
    """A handle that a later request may go on with."""

    def crop(self, length: int) -> None:
        """Keeps the first ``length`` tokens (at most all of them), and nothing that a verification left."""

    def branch(self, length: int) -> KeptHandle:
        """Another handle with the first ``length`` tokens of this one, which stays as it is. O(length)."""


class Verifier(Protocol):
    """One loaded target. Its handles share the weights and are driven by one thread."""

    @property
    def name(self) -> str:
        """For people: logs, Welcome, error messages."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer's entries; what edges must match."""

    @property
    def logits_width(self) -> int:
        """V of the rows; at least the drawable ids (checkpoints pad it)."""

    @property
    def max_context(self) -> int:
        """Prompt and output tokens of one request."""

    def open(self) -> KeptHandle:
        """A handle with an empty context."""


class Proposer(Protocol):
    """Guesses how a text goes on from what the target's last forward left behind. One thread, the
    scheduler's. A bad guess costs time, never a token.
    """

    @property
    def longest(self) -> int:
        """Tokens of one proposal at most."""

    def propose(
        self, handle: Handle, tip: int, position: int, rules: SamplingRules, count: int, least: float
    ) -> list[int]:
        """At most ``count`` tokens that may follow ``tip``, the first of them at absolute ``position``.

        ``rules``: the request's; with their noise a guess is the target's choice more often. ``least``: a
        token that is accepted with a lower probability than this, those before it included, may be left out
        with all after it. The cost does not depend on the length of the context.
        """


def drawable(verifier: Verifier) -> int:
    """Ids that may be drafted, drawn or accepted: the tokenizer's, never the padding behind them."""
    return min(verifier.vocabulary.size, verifier.logits_width)
