"""Where the gateway listens."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from acespec_edge.errors import UsageError
from acespec_edge.listening import is_loopback, listen
from acespec_edge.tls import server_context

_UNACKNOWLEDGED_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Listener:
    """An address; ``port`` 0 takes a free one. ``guarded``: whether API keys are asked for. The ``tls``
    files: see tls.server_context.

    Raises UsageError when others than this machine can reach ``host`` and nothing is asked for, and for TLS
    files that cannot be used.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    guarded: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def __post_init__(self) -> None:
        if not self.guarded and not is_loopback(self.host):
            raise UsageError(
                f"host is {self.host!r}, which others can reach, and there is no API key file: anybody could "
                "use this model. Give --api-key-file, or listen on 127.0.0.1"
            )
        self.tls()

    def tls(self) -> ssl.SSLContext | None:
        """How it is encrypted, if it is."""
        return server_context(self.tls_cert, self.tls_key)

    def bind(self) -> socket.socket:
        """A listening socket, which gives a client up that takes no event for 30 s. Raises UsageError when
        the address cannot be had."""
        return listen(self.host, self.port, unacknowledged_ms=_UNACKNOWLEDGED_MS)
