"""What peers write, made fit for a terminal, which obeys escapes."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with every character but line feeds that is not printable spelled out, as ``\\x1b``."""
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in text
    )
