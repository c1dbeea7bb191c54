"""Where the gateway listens."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

from acespec_edge.errors import UsageError
from acespec_edge.listening import is_loopback, listen

_UNACKNOWLEDGED_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Listener:
    """An address; ``port`` 0 takes a free one. ``guarded``: whether API keys are asked for.

    Raises UsageError when others than this machine can reach ``host`` and nothing is asked for.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    guarded: bool = False

    def __post_init__(self) -> None:
        if not self.guarded and not is_loopback(self.host):
            raise UsageError(
                f"host is {self.host!r}, which others can reach, and there is no API key file: anybody could "
                "use this model. Give --api-key-file, or listen on 127.0.0.1"
            )

    def bind(self) -> socket.socket:
        """A listening socket, which gives a client up that takes no event for 30 s. Raises UsageError when
        the address cannot be had."""
        return listen(self.host, self.port, unacknowledged_ms=_UNACKNOWLEDGED_MS)
