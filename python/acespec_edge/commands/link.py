"""What a command says when the connection to the cloud comes and goes."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from acespec_edge.resumption import LinkEvent

_log: Final = logging.getLogger("acespec.link")


def say(event: LinkEvent) -> None:
    """A line on standard error: the text on standard output stays as it is."""
    print(f"acespec: {event}", file=sys.stderr, flush=True)


def log(event: LinkEvent) -> None:
    """A line of the log, for a command that writes one."""
    _log.warning("%s", event, extra={"link": event.kind, "seconds": round(event.seconds, 3)})
