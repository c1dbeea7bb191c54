"""Options of the commands that serve."""

from __future__ import annotations

from typing import Annotated

import typer

from acespec_edge.logs import LogFormat, LogLevel

LogForm = Annotated[LogFormat, typer.Option("--log-format", help="Log lines for people or for programs.")]
LogFrom = Annotated[LogLevel, typer.Option("--log-level", help="Least severity of what is logged.")]
DrainSeconds = Annotated[
    float,
    typer.Option(
        "--drain-seconds", min=0.0, max=3600.0, help="What running requests get to end after SIGTERM."
    ),
]
