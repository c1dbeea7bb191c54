"""The drafter as the runtime sees it, and how one is made from a bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from acespec_edge.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from acespec_edge import _core
    from acespec_edge.bundle import Bundle

_GRANULE: Final = 64
_FEWEST_BRANCH_SLOTS: Final = 16


class Report(Protocol):
    """What one forward did; ``exhausted``: nothing was worth one."""

    @property
    def rows(self) -> int: ...
    @property
    def prefilling(self) -> bool: ...
    @property
    def exhausted(self) -> bool: ...


class Recovered(Protocol):
    """What a verdict left of the speculation."""

    @property
    def hit(self) -> bool: ...
    @property
    def microseconds(self) -> float: ...


class Taken(Protocol):
    """Nodes that were given away: their tokens, and the numbers of their parents (0: the root)."""

    @property
    def tokens(self) -> list[int]: ...
    @property
    def parents(self) -> list[int]: ...


class Drafter(Protocol):
    """What the runtime asks of a drafter; ``_core.Drafter`` is one, and its header is the contract."""

    @property
    def pending(self) -> int: ...
    @property
    def unsent(self) -> int: ...

    @property
    def ready(self) -> int: ...
    @property
    def room(self) -> int: ...
    @property
    def chain_weights(self) -> list[int]: ...
    def begin(
        self, prompt: list[int], rules: _core.SamplingRules, stop_ids: Sequence[int], residual: bool
    ) -> int: ...
    def set_mask(self, source: Callable[[list[int]], npt.NDArray[np.uint32] | None] | None) -> None: ...
    def step(self, width: int, extend: bool) -> Report: ...
    def set_arm(self, arm: _core.Arm) -> None: ...
    def allot(self, alternatives: Sequence[int]) -> None: ...
    def frontier(self, most: int) -> list[float]: ...
    def survey(self, most: int) -> list[float]: ...
    def prospect(self, count: int) -> tuple[float, float]: ...
    def acceptance(self) -> float: ...
    def chain_acceptances(self, most: int) -> list[float]: ...
    def take(self, count: int) -> Taken: ...
    def take_chain(self, length: int) -> Taken: ...
    def skip_numbers(self, count: int) -> None: ...
    def resample(self, depth: int, row: _core.SparseRow) -> int | None: ...
    def apply_verdict(self, tokens: list[int]) -> Recovered: ...


def load_drafter(bundle: Bundle, *, context: int, cache_mb: int, threads: int) -> Drafter:
    """The bundle's model on ONNX Runtime, with all its memory taken: keys and values of ``context`` committed
    tokens and ``cache_mb`` MiB of them for branches.

    Raises UsageError when the cache is too small to be of use, EngineError when the model does not load.
    """
    from acespec_edge import _core
    from acespec_edge.ort_library import ort_library

    branches = branch_slots(bundle, cache_mb)
    slots = -(-(context + branches) // _GRANULE) * _GRANULE
    engine = _core.OrtEngine(
        str(bundle.model_file),
        ort_library(),
        slots=slots,
        vocabulary=bundle.vocabulary,
        max_positions=bundle.max_positions,
        threads=threads,
        name=bundle.name,
    )
    return _core.Drafter(engine, _core.DrafterOptions(context=context))


def branch_slots(bundle: Bundle, cache_mb: int) -> int:
    """How many tree nodes a cache of ``cache_mb`` MiB holds: a node's keys and values are float32."""
    node_bytes = 2 * bundle.layers * bundle.kv_width * 4
    slots = (cache_mb << 20) // node_bytes
    if slots < _FEWEST_BRANCH_SLOTS:
        least = -(-_FEWEST_BRANCH_SLOTS * node_bytes // (1 << 20))
        raise UsageError(f"cache_mb is {cache_mb}: for {bundle.name} it must be {least} or more")
    return slots
