"""The native surface. Token, position and slot lists are lists of int; arrays are C-contiguous float32."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

class AcespecError(Exception): ...
class UsageError(AcespecError): ...
class PeerError(AcespecError): ...
class EngineError(AcespecError): ...

class EngineInfo:
    """What a loaded model is.

    ``logits_width`` may exceed ``vocabulary``, the drawable ids; ``slots`` are rows of the KV ring, of
    ``bytes_per_slot`` bytes over all layers; ``provider`` is the execution provider taken.
    """

    @property
    def name(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def logits_width(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def bytes_per_slot(self) -> int: ...

class Engine:
    """One masked forward of a small language model over a KV ring. One forward at a time, from any thread."""

    @property
    def info(self) -> EngineInfo: ...
    @property
    def max_rows(self) -> int:
        """Largest T of one forward."""
    @property
    def visible_granule(self) -> int:
        """S of a forward must be a multiple of it."""
    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        bias: npt.NDArray[np.float32],
        rows: Sequence[int],
    ) -> npt.NDArray[np.float32]:
        """Logits float32[R, logits_width] of the rows listed, a copy. Releases the GIL.

        ``tokens``, ``positions`` and ``slots`` have T entries; ``rows`` are ascending indices into T.
        ``bias`` is float32[T, S]: 0 where row t may see a slot, its own included, and -inf or at most -1e4
        elsewhere. Raises UsageError for sizes and ranges that do not fit, EngineError when the runtime fails.
        """

class OrtEngine(Engine):
    def __init__(
        self,
        model: str,
        library: str,
        *,
        slots: int,
        vocabulary: int,
        max_positions: int = 0,
        threads: int = 1,
        spinning: bool = True,
        name: str = "",
        provider: str = "cpu",
    ) -> None:
        """Loads ``model`` (path of model.onnx) on the ONNX Runtime in ``library`` and takes all memory.

        ``slots``: a multiple of 64. ``max_positions``: of the model's rotary table; 0 means as many as slots.
        ``threads``: of one operator; they spin within a forward when ``spinning``. ``name``: for messages,
        the path by default. ``provider``: cpu, cuda, tensorrt, or auto for the best that loads and keeps its
        keys and values right.
        Raises UsageError for options out of range, EngineError when library, model or provider do not do.
        """

class FakeEngine(Engine):
    """Deterministic, without a model: logits are a hash of the tokens a row sees.

    Judges every mask: EngineError unless the visible slots hold exactly the positions 0 to the row's own,
    each once.
    """

    def __init__(
        self,
        vocabulary: int = 64,
        slots: int = 256,
        seed: int = 0,
        *,
        max_rows: int = 64,
        max_positions: int = 4096,
        sharpness: float = 2.0,
        disagreement: float = 0.0,
        base_seconds: float = 0.0,
        row_seconds: float = 0.0,
    ) -> None:
        """``seed`` names the target; a drafter of it has the same seed and a ``disagreement`` in [0, 1].

        At 0.1, 0.2, 0.3 the best tokens agree in 95, 87, 75 % of contexts. A forward takes at least
        ``base_seconds`` plus ``row_seconds`` for each row. Raises UsageError naming an option out of range.
        """

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """The model as a function: logits float32[vocabulary] after ``tokens`` at positions 0..n-1."""

class DrafterOptions:
    def __init__(
        self,
        *,
        context: int = 2048,
        candidates: int = 4,
        max_nodes: int = 256,
        sharpness: float = ...,
        floor: float = -9.0,
    ) -> None:
        """``context``: committed tokens held; the engine's other slots are for branches.

        ``candidates``: children grown under an expanded node. ``max_nodes``: nodes expanded between two
        verdicts. ``sharpness``: temperature that turns scores into the estimated probability that the target
        takes a candidate. ``floor``: log-probability under which a branch is not worth a forward.
        """
    @property
    def context(self) -> int: ...
    @property
    def candidates(self) -> int: ...
    @property
    def max_nodes(self) -> int: ...
    @property
    def sharpness(self) -> float: ...
    @property
    def floor(self) -> float: ...

class StepReport:
    @property
    def rows(self) -> int:
        """Tokens forwarded."""
    @property
    def seconds(self) -> float:
        """Of the engine's forward."""
    @property
    def prefilling(self) -> bool:
        """The rows were committed tokens."""
    @property
    def exhausted(self) -> bool:
        """Nothing was worth expanding; no forward was made."""

class Recovery:
    @property
    def hit(self) -> bool:
        """The new last token was in the cache, expanded: no forward is needed to go on."""
    @property
    def ready(self) -> int:
        """Drafted tokens on the main chain from there."""
    @property
    def microseconds(self) -> float:
        """From the verdict to the chain being ready."""

class Drafter:
    """One request's speculation: begin(), step() while waiting, take_chain() to send, apply_verdict().

    Not thread-safe; one call at a time, from any thread.
    """

    def __init__(self, engine: Engine, options: DrafterOptions = ...) -> None:
        """Raises UsageError when the engine's ring lacks room for the context and 16 branch slots."""
    def begin(self, prompt: Sequence[int], rules: SamplingRules) -> int:
        """Starts a request; returns how many prompt tokens keep the keys and values of the last one.

        Raises UsageError on an empty prompt, one longer than the context, an unknown token, bad rules.
        """
    def step(self, width: int, extend: bool) -> StepReport:
        """One forward; releases the GIL.

        While committed tokens lack keys and values it feeds those, then it expands up to ``width`` nodes: the
        tip of the main chain first when ``extend`` (exhausted when it cannot be), otherwise the likeliest.
        Raises EngineError, after which the state is as before.
        """
    def take_chain(self, length: int) -> list[int]:
        """The first ``length`` tokens of the main chain, fewer if fewer are ready, pinned until the next
        verdict. Raises UsageError while a chain is in flight."""
    def apply_verdict(self, tokens: Sequence[int]) -> Recovery:
        """Commits ``tokens``: the accepted ones and the correction or bonus, in order.

        Raises UsageError when they are none, do not fit the context, or lie outside the vocabulary.
        """
    @property
    def ready(self) -> int:
        """Drafted tokens on the main chain."""
    @property
    def committed(self) -> int:
        """Tokens committed, the prompt included."""
    @property
    def room(self) -> int:
        """Tokens that can still be committed."""
    def snapshot(self) -> dict[str, Any]:
        """Nodes (the root first) and the cache's counts, for tests and support."""
    def check(self) -> list[str]:
        """Violated invariants, a line each; empty when sound."""
