"""What is kept for one connection's edge."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cloud_stub.prefix_store import Holding, Owner, PrefixStore


class SessionContexts:
    """The store as one session sees it: by its owner, who becomes another when the edge comes back with the
    key of a session that it had. As thread-safe as the store, but for ``resume``, which comes before all.
    """

    def __init__(
        self, store: PrefixStore, owner: Owner, displace: Callable[[Owner, SessionContexts], bool]
    ) -> None:
        """``displace`` ends the other connection of an owner, and says whether there was one: its edge has
        given it up, whether that has shown here or not.
        """
        self.owner = owner
        self._store = store
        self._displace = displace

    def resume(self, key: bytes) -> bool:
        """Goes on with the session of this key, if it was the same edge's and anything is left of it."""
        earlier = Owner(self.owner.identity, key)
        if not self._displace(earlier, self) and not self._store.holds(earlier):
            return False
        self.owner = earlier
        return True

    def beginning(self, count: int, digest: bytes) -> list[int] | None:
        """See ``PrefixStore.beginning``."""
        return self._store.beginning(self.owner, count, digest)

    def admit(self, prompt: Sequence[int], tokens: int) -> Holding | None:
        """See ``PrefixStore.admit``."""
        return self._store.admit(self.owner, prompt, tokens)

    def keep(self, holding: Holding, text: Sequence[int], reserved: int) -> None:
        """See ``PrefixStore.keep``."""
        self._store.keep(self.owner, holding, text, reserved)

    def free(self, holding: Holding, reserved: int) -> None:
        """See ``PrefixStore.free``."""
        self._store.free(holding, reserved)
