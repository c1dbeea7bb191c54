"""What servers log: one line an event, for people or for programs, always with the id of the request.

Prompts, outputs, tokens and keys are never logged.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from contextvars import ContextVar
from enum import Enum
from typing import Final, TextIO

OURS: Final = ("acespec", "acespec_edge", "cloud_stub")
"""Loggers of this distribution; others are heard from warnings on."""

request_id: Final[ContextVar[str]] = ContextVar("acespec_request_id", default="")
"""Of the request that this thread or task works for; empty between requests."""

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class LogFormat(str, Enum):
    """How a line looks."""

    text = "text"
    json = "json"


class LogLevel(str, Enum):
    """The least severity that is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def configure_logs(form: LogFormat, level: LogLevel, stream: TextIO | None = None) -> None:
    """Sends every log line of this process to ``stream``, standard error by default, in that form; replaces
    what was configured before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if form is LogFormat.json else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(level.value.upper())


def usable_id(given: str) -> str:
    """``given`` when it is an id that can stand in a log as it is, else a new one."""
    return given if _ID.fullmatch(given) else secrets.token_hex(8)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """The request's id and what the caller added with ``extra``."""
    added = {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
    return {"request": request_id.get(), **added} if request_id.get() else added


def _moment(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.created % 1 * 1000):03d}Z"


class _Json(logging.Formatter):
    """One object a line; a traceback is one of its texts."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _Text(logging.Formatter):
    """Time, severity, what, and the fields behind it; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{_moment(record)} {record.levelname.lower():<7} {record.name}: {record.getMessage()}{fields}"
        line = line.replace("\n", "\\n")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
