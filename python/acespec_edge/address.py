"""Where a cloud is, and the token that it wants."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from acespec_edge.errors import UsageError

TOKEN_VARIABLE: Final = "ACESPEC_TOKEN"
"""Environment variable of the bearer token, for when no token file is given."""


def parse_address(url: str) -> SplitResult:
    """The parts of a cloud's address. Raises UsageError for what is none, and for one that bears a name or a
    password: command lines and messages show addresses."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        valid = parts.scheme in ("ws", "wss") and bool(host) and (parts.port is None or parts.port > 0)
    except ValueError:  # a UnicodeError, for a host name, is one
        valid = False
    if "@" in url:
        raise UsageError(
            "cloud is an address with a name or a password before an @: it may hold none, a token file does"
        )
    if not valid:
        raise UsageError(
            f"cloud is {url!r}: an address like wss://llm.example.com/v1/spec, or 'local', is right"
        )
    return parts


def read_token(path: Path | None) -> str | None:
    """The bearer token from a file, else from the environment, else None. It never comes from a command
    line."""
    if path is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        source = TOKEN_VARIABLE
    else:
        try:
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"token_file {str(path)!r} cannot be read: {error}") from error
        source = str(path)
        if not token:
            raise UsageError(f"token_file {source!r} is empty: it must hold the bearer token")
    if not token:
        return None
    if not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"the token in {source} has characters that no bearer token has: one line of ASCII is right"
        )
    return token
