"""The `acespec` command: its subcommands, and what becomes of their errors."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from typing import Annotated

import typer

from acespec_edge import __version__
from acespec_edge.commands.export import export
from acespec_edge.commands.generate import generate
from acespec_edge.commands.models import app as models
from acespec_edge.commands.wan import wan
from acespec_edge.errors import AcespecError, UsageError

STATUS_FAILED = 1
STATUS_USAGE = 2
STATUS_INTERRUPTED = 130


@dataclass
class _Settings:
    """Options that hold for every subcommand."""

    debug: bool = False


_settings = _Settings()

app = typer.Typer(
    name="acespec",
    help="Speculative decoding across a WAN: this device drafts, the cloud verifies.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(short_help="Generate text from a prompt.")(generate)
app.command(short_help="Make a draft bundle from a model.")(export)
app.add_typer(models, name="models")
app.command(short_help="Emulate a wide-area network.")(wan)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"acespec {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    _settings.debug = debug


def main() -> None:
    """Runs the command line. Exit status: 0, 1 when the run failed, 2 for wrong usage, 130 when
    interrupted."""
    try:
        app()
    except UsageError as error:
        _fail(str(error), STATUS_USAGE)
    except AcespecError as error:
        _fail(str(error), STATUS_FAILED)
    except KeyboardInterrupt:
        sys.exit(STATUS_INTERRUPTED)
    except Exception as error:
        _fail(f"{type(error).__name__}: {error} (--debug shows where)", STATUS_FAILED)


def _fail(message: str, status: int) -> None:
    if _settings.debug:
        traceback.print_exc()
    print(f"acespec: {message}", file=sys.stderr)
    sys.exit(status)
