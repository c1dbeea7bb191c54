"""Commands whose options may also stand in a file or in the environment, and the commands that show them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from acespec_edge.config import CONFIG_VARIABLE, Option, Setting, options_of, read_settings, toml_value

_File = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", envvar=CONFIG_VARIABLE, help="The TOML file.")
]


def config_file(
    section: str,
    command: Callable[[], Callable[..., Any]],
    taker: Callable[[], Callable[..., Any]] | None = None,
) -> Any:
    """The option ``--config`` of a command that takes its other options from ``section``. ``command``
    returns the function whose options the section has, ``taker`` the one that takes those that it has, too,
    if that is another: they are asked when all are defined.
    """

    def read(context: typer.Context, file: Path | None) -> Path | None:
        found = read_settings(section, options_of(command()), file, os.environ)
        taken = options_of((taker or command)())
        # Consulted for what the command line leaves open, before the defaults.
        context.default_map = {
            option.parameter: _shaped(found[key].value, option)
            for key, option in taken.items()
            if key in found
        }
        return file

    return typer.Option(
        "--config",
        metavar="FILE",
        envvar=CONFIG_VARIABLE,
        is_eager=True,
        callback=read,
        help=f"TOML file; its section [{section}] has the options not given here.",
    )


def _shaped(value: Any, option: Option) -> Any:
    """A value of one command's option as another's takes it: a list where it is one."""
    return [value] if option.many and not isinstance(value, list) else value


def config_commands(section: str, command: Callable[..., Any]) -> typer.Typer:
    """The subcommands `show` and `check` for ``section``, which has the options of ``command``."""
    app = typer.Typer(
        help=f"Options from a file and the environment, section [{section}].", no_args_is_help=True
    )

    @app.command(short_help="Print every option and where it comes from.")
    def show(
        config: _File = None,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    ) -> None:
        """Print every option, its value, and whether a file, a variable or the default decides."""
        options = options_of(command)
        found = read_settings(section, options, config, os.environ)
        shown = {
            key: found.get(key, Setting(option.default, "not set" if option.default is None else "default"))
            for key, option in options.items()
        }
        if as_json:
            values = {key: {"value": one.value, "source": one.source} for key, one in shown.items()}
            print(json.dumps({section: values}, default=str))
            return
        print(f"[{section}]")
        for key, one in shown.items():
            value = "" if one.value is None else toml_value(one.value)
            print(f"{key + ' = ' + value if value else '# ' + key:<48} # {one.source}")

    @app.command(short_help="Check a file without starting anything.")
    def check(
        config: Annotated[Path, typer.Argument(metavar="FILE", help="The TOML file.")],
    ) -> None:
        """Check that every key is an option, every value of its kind, every path there. Status 2 if not."""
        from acespec_edge.errors import UsageError

        options = options_of(command)
        found = read_settings(section, options, config, os.environ)
        for key, setting in found.items():
            if options[key].kind is Path:
                for path in setting.value if options[key].many else [setting.value]:
                    if not Path(path).exists():
                        raise UsageError(
                            f"{setting.source}: {key} is {path!r}: there is no such file or folder"
                        )
        print(f"{config}: [{section}] is right, {len(found)} of {len(options)} options set")
        missing = [key for key, option in options.items() if option.required and key not in found]
        if missing:
            names = ", ".join("--" + key.replace("_", "-") for key in missing)
            print(f"to be given on the command line: {names}")

    return app
