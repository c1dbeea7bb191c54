"""The drafter as the runtime sees it, and how one is made from a bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol

from acespec_edge.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from acespec_edge import _core
    from acespec_edge.bundle import Bundle

_GRANULE: Final = 64
_FEWEST_BRANCH_SLOTS: Final = 16

DrafterName = Literal["model", "lookup", "both"]
"""What drafts: the bundle's model, the text itself by what followed the same tokens before, or both in one
tree."""
DRAFTERS: Final[tuple[DrafterName, ...]] = ("model", "lookup", "both")

_LOOKED_UP: Final = 16
"""Tokens that are looked up below a node, at most: a text rarely repeats itself for longer by chance, and a
verdict that takes them all leads to the next ones."""


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
        self,
        prompt: list[int],
        rules: _core.SamplingRules,
        stop_ids: Sequence[int],
        residual: bool,
        lookup: bool = True,
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


def checked_drafter(name: str) -> DrafterName:
    """``name``, if it is one of DRAFTERS, else UsageError."""
    for known in DRAFTERS:
        if name == known:
            return known
    raise UsageError(f"drafter is {name!r}: it must be one of {', '.join(DRAFTERS)}")


def lookup_drafter(vocabulary: int, *, context: int) -> Drafter:
    """A drafter without a model, for ids 0 to ``vocabulary`` - 1: it proposes what followed the last tokens
    where they stood in the text before."""
    from acespec_edge import _core

    engine = _core.BlankEngine(vocabulary=vocabulary, slots=context + _FEWEST_BRANCH_SLOTS)
    return _core.Drafter(engine, _core.DrafterOptions(context=context, candidates=0, lookup=_LOOKED_UP))


def load_drafter(
    bundle: Bundle,
    *,
    context: int,
    cache_mb: int,
    threads: int,
    cores: Sequence[int] = (),
    spinning: bool = True,
    lookup: bool = False,
) -> Drafter:
    """The bundle's model on the best provider that it is made for and that works, with all its memory taken:
    keys and values of ``context`` committed tokens and ``cache_mb`` MiB of them for branches. ``threads``,
    ``cores``, ``spinning``: as of ``_core.OrtEngine``. ``lookup`` adds what followed the same tokens before.

    Raises UsageError when the cache is too small to be of use or the bundle has no model, EngineError when
    the model does not load.
    """
    from acespec_edge import _core, models
    from acespec_edge.bundle import MODEL
    from acespec_edge.ort_library import ort_library
    from acespec_edge.providers import best_engine, tensorrt_options

    if not bundle.has_model:
        raise UsageError(
            f"{bundle.path}: this bundle has a tokenizer and no model; use it with drafter 'lookup', or "
            "export one with a model"
        )
    branches = branch_slots(bundle, cache_mb)
    slots = -(-(context + branches) // _GRANULE) * _GRANULE

    def make(provider: str) -> _core.OrtEngine:
        told = []
        if provider == "tensorrt":
            cache = models.cache_folder().parent / "tensorrt" / bundle.sha256[MODEL][:16]
            cache.mkdir(parents=True, exist_ok=True)
            told = tensorrt_options(bundle, slots=slots, cache=cache)
        return _core.OrtEngine(
            str(bundle.model_file),
            ort_library(),
            slots=slots,
            vocabulary=bundle.vocabulary,
            max_positions=bundle.max_positions,
            threads=threads,
            cores=cores,
            spinning=spinning,
            name=bundle.name,
            provider=provider,
            provider_options=told,
        )

    engine, _ = best_engine(bundle.providers, make, name=bundle.name)
    options = _core.DrafterOptions(context=context, lookup=_LOOKED_UP if lookup else 0)
    return _core.Drafter(engine, options)


def branch_slots(bundle: Bundle, cache_mb: int) -> int:
    """How many tree nodes a cache of ``cache_mb`` MiB holds, by the bytes of a node's keys and values."""
    node_bytes = 2 * bundle.layers * bundle.kv_width * bundle.kv_bytes
    slots = (cache_mb << 20) // node_bytes
    if slots < _FEWEST_BRANCH_SLOTS:
        least = -(-_FEWEST_BRANCH_SLOTS * node_bytes // (1 << 20))
        raise UsageError(f"cache_mb is {cache_mb}: for {bundle.name} it must be {least} or more")
    return slots
