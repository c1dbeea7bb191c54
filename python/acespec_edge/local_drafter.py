"""The drafter of one runtime."""

from __future__ import annotations

from acespec_edge.bundle import Bundle
from acespec_edge.cores import Placement, keep_to
from acespec_edge.drafting import Drafter, DrafterName, checked_drafter, load_drafter, lookup_drafter


class LocalDrafter:
    """Which drafter it is, with how much memory and on which cores; loaded when it is first asked for. Not
    thread-safe."""

    def __init__(
        self,
        bundle: Bundle,
        drafter: DrafterName | Drafter,
        placement: Placement,
        *,
        context: int,
        cache_mb: int,
        spinning: bool,
    ) -> None:
        """``drafter``: one of DRAFTERS, or an object that is used instead. ``context``: tokens it holds, as
        far as the model has positions for them. ``cache_mb``, ``spinning``: see load_drafter(). Raises
        UsageError for another name."""
        self._kind: DrafterName = checked_drafter(drafter) if isinstance(drafter, str) else "model"
        self._drafter = None if isinstance(drafter, str) else drafter
        self._bundle = bundle
        self._placement = placement
        self._cache_mb = cache_mb
        self._spinning = spinning
        self.context = context if self._kind == "lookup" else min(context, bundle.max_positions)

    @property
    def writes(self) -> bool:
        """Whether it has something to say of its own, so that it can go on without a target."""
        return self._kind != "lookup"

    def get(self) -> Drafter:
        """Raises UsageError and EngineError as load_drafter() does."""
        if self._drafter is None and self._kind == "lookup":
            self._drafter = lookup_drafter(self._bundle.vocabulary, context=self.context)
        elif self._drafter is None:
            self._drafter = load_drafter(
                self._bundle,
                context=self.context,
                cache_mb=self._cache_mb,
                threads=self._placement.threads,
                cores=self._placement.cores,
                spinning=self._spinning,
                lookup=self._kind == "both",
            )
        return self._drafter

    def keep_to_cores(self) -> None:
        """Keeps the calling thread to the cores of the drafter's threads."""
        keep_to(self._placement)

    def release(self) -> None:
        """Lets go of it and its memory."""
        self._drafter = None
