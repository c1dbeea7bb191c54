"""Sockets that servers listen on, and who can reach them."""

from __future__ import annotations

import ipaddress
import socket

from acespec_edge.errors import UsageError


def listen(host: str, port: int, *, unacknowledged_ms: int) -> socket.socket:
    """A listening socket. Raises UsageError when the address cannot be had.

    What it accepts inherits TCP_NODELAY, which asyncio sets by itself only where a socket's protocol is given
    as TCP, and ``unacknowledged_ms``, how long sent bytes may stay unacknowledged or a peer's window shut:
    without that, closing a connection to a peer that does not read would never end.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unacknowledged_ms)
    return listening


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address_of(listening: socket.socket) -> str:
    """HOST:PORT of a listening socket, as an URL has it."""
    host, port = listening.getsockname()[:2]
    return f"{f'[{host}]' if ':' in host else host}:{port}"
