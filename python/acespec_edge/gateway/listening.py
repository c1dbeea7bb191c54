"""Where the gateway listens."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Final

from acespec_edge.errors import UsageError

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
        """A listening socket. Raises UsageError when the address cannot be had.

        What it accepts sends events at once, and gives a client up that takes none for 30 s.
        """
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            listening = socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {self.host}:{self.port}: {error.strerror or error}"
            ) from error
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        return listening


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
