"""What every command line of this distribution shares: `--debug`, `--version`, and what becomes of errors."""

import sys
import traceback
from typing import Annotated

import typer

from acespec_edge import __version__
from acespec_edge.errors import AcespecError, UsageError
from acespec_edge.printable import printable

STATUS_FAILED = 1
STATUS_USAGE = 2
STATUS_INTERRUPTED = 130


class Program:
    """A command line: ``app`` takes the subcommands, ``run`` runs it and turns errors into one line and a
    status."""

    def __init__(self, name: str, purpose: str) -> None:
        self._name = name
        self._debug = False
        self.app = typer.Typer(
            name=name,
            help=purpose,
            no_args_is_help=True,
            add_completion=False,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
        )

        def show_version(wanted: bool) -> None:
            if wanted:
                print(f"{name} {__version__}")
                raise typer.Exit

        @self.app.callback()
        def common(
            debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
            version: Annotated[
                bool,
                typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
            ] = False,
        ) -> None:
            self._debug = debug

    def run(self) -> None:
        """Exit status: 0, 1 when the run failed, 2 for wrong usage, 130 when interrupted."""
        try:
            self.app()
        except UsageError as error:
            self._fail(str(error), STATUS_USAGE)
        except AcespecError as error:
            self._fail(str(error), STATUS_FAILED)
        except KeyboardInterrupt:
            sys.exit(STATUS_INTERRUPTED)
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error} (--debug shows where)", STATUS_FAILED)

    def _fail(self, message: str, status: int) -> None:
        if self._debug:
            traceback.print_exc()
        print(f"{self._name}: {printable(message)}", file=sys.stderr)
        sys.exit(status)
