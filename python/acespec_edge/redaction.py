"""No secrets in logs: WebSocket and HTTP libraries write every header at DEBUG."""

from __future__ import annotations

import logging
import re
from typing import Final

_BEARER: Final = re.compile(r"(?i)(authorization\b\W*)[^\r\n]*")


class NoSecrets(logging.Filter):
    """Cuts what stands behind "Authorization" out of every record. Thread-safe."""

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        cut = _BEARER.sub(r"\1[not shown]", said)
        if cut != said:
            record.msg, record.args = cut, ()
        return True


_FILTER: Final = NoSecrets()


def discreet(name: str) -> logging.Logger:
    """The logger of that name, which shows no secrets from now on. Those below it have to be asked for by
    themselves: a filter sees only what its own logger is given."""
    logger = logging.getLogger(name)
    logger.addFilter(_FILTER)
    return logger
