"""What a command says when the connection to the cloud comes and goes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acespec_edge.resumption import LinkEvent


def say(event: LinkEvent) -> None:
    """A line on standard error: the text on standard output stays as it is."""
    print(f"acespec: {event}", file=sys.stderr, flush=True)
