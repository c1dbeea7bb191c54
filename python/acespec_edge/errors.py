"""What can go wrong, by whose fault it is: the caller's, the peer's, the network's or the model runtime's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acespec_edge._core import AcespecError, EngineError, PeerError, UsageError

if TYPE_CHECKING:
    from acespec_edge.result import Result

__all__ = ["AcespecError", "EngineError", "LinkError", "PeerError", "UsageError"]


class LinkError(AcespecError):
    """The network failed: no connection, no answer in time, or a peer that vanished.

    ``partial`` is what had been received when it happened, if a generation was running. ``retry_after``
    (seconds) is set when the cloud was busy and said when to come back.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.partial: Result | None = None
        self.retry_after = retry_after
