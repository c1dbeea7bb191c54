"""Options of a command from a TOML file and the environment.

What can be set is read off the command itself: every option of ``acespec serve`` is a key of the section
``[edge]`` and a variable ``ACESPEC_EDGE_KEY``, every one of ``acespec-cloud serve`` a key of ``[cloud]``. An
argument goes before the environment, the environment before the file, the file before the default.
"""

from __future__ import annotations

import difflib
import inspect
import sys
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from typer.models import OptionInfo

from acespec_edge.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SECTIONS: Final = ("edge", "cloud")
"""One for each side, so that one file can serve both."""

CONFIG_VARIABLE: Final = "ACESPEC_CONFIG"
"""Environment variable of the file, for when ``--config`` is not given."""

_LARGEST_FILE: Final = 1 << 20
_NOT_KEYS: Final = frozenset({"config", "json"})
_TRUTHS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_WORDS: Final = {
    str: "a text",
    Path: "a path",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


@dataclass(frozen=True, slots=True)
class Option:
    """What one key is: ``parameter`` of the command's function, ``kind`` of its values (of each, if
    ``many``), bounds included. ``required``: there is no default. ``parse``: of options with a reader of
    their own, which takes what it returns, too, and raises UsageError; ``form``: how their help writes a
    value.
    """

    key: str
    parameter: str
    kind: type
    many: bool
    default: Any
    required: bool
    help: str
    least: float | None
    most: float | None
    parse: Callable[[str], Any] | None = None
    form: str = ""

    @property
    def wanted(self) -> str:
        """What is right, in words."""
        if self.parse is not None:
            return self.form or "a text"
        if issubclass(self.kind, Enum):
            return "one of " + ", ".join(str(member.value) for member in self.kind)
        bounds = ""
        if self.least is not None and self.most is not None:
            bounds = f" from {self.least:g} to {self.most:g}"
        elif self.least is not None:
            bounds = f" of {self.least:g} or more"
        words = _WORDS[self.kind] + bounds
        return f"a list, each {words}" if self.many else words

    @property
    def default_text(self) -> str:
        """The default as TOML has it; empty where there is none."""
        return "" if self.default is None else toml_value(self.default)


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and where it comes from: a file, a variable, or "default"."""

    value: Any
    source: str


def options_of(command: Callable[..., Any]) -> dict[str, Option]:
    """The options of a typer ``command`` that can be set elsewhere than on its command line, by key."""
    hints = get_type_hints(command, include_extras=True)
    found = {}
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        info = next((part for part in get_args(hint)[1:] if isinstance(part, OptionInfo)), None)
        if get_origin(hint) is not Annotated or info is None:
            continue
        # In an annotation the first name stands where a default would.
        names = [
            name for name in map(str, (info.default, *(info.param_decls or ()))) if name.startswith("--")
        ]
        key = (names[0].lstrip("-") if names else parameter.name).replace("-", "_")
        if key in _NOT_KEYS:
            continue
        kind, many = (str, False) if info.parser is not None else _kind(get_args(hint)[0])
        required = parameter.default is inspect.Parameter.empty
        found[key] = Option(
            key=key,
            parameter=parameter.name,
            kind=kind,
            many=many,
            default=None if required else parameter.default,
            required=required,
            help=info.help or "",
            least=info.min,
            most=info.max,
            parse=info.parser,
            form=info.metavar or "",
        )
    return found


def variable(section: str, key: str) -> str:
    """The environment variable of a key."""
    return f"ACESPEC_{section}_{key}".upper()


def read_settings(
    section: str, options: Mapping[str, Option], file: Path | None, environment: Mapping[str, str]
) -> dict[str, Setting]:
    """What ``file`` and ``environment`` set in ``section``, by key.

    Raises UsageError for a file that cannot be read or is no TOML, for sections, keys and variables that
    there are not (naming the nearest), and for values of another kind or out of bounds.
    """
    settings = {}
    for key, value in ({} if file is None else _section(section, file)).items():
        where = f"{file}: [{section}] {key}"
        if key not in options:
            raise UsageError(f"{where}: there is no such option{_nearest(key, options)}")
        settings[key] = Setting(_checked(value, options[key], where), str(file))
    prefix = variable(section, "")
    for name in sorted(environment):
        if not name.startswith(prefix):
            continue
        key = name[len(prefix) :].lower()
        if key not in options:
            names = [variable(section, one) for one in options]
            raise UsageError(f"{name}: there is no such variable{_nearest(name, names)}")
        value = _from_text(environment[name], options[key], name)
        settings[key] = Setting(_checked(value, options[key], name), name)
    return settings


def toml_value(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(one) for one in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, int | float):
        return repr(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'


def _kind(hint: Any) -> tuple[type, bool]:
    """The type of a value, and whether there may be several."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is list:
        return get_args(hint)[0], True
    return hint, False


def _section(section: str, file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            data = opened.read(_LARGEST_FILE + 1)
        if len(data) > _LARGEST_FILE:
            raise UsageError(
                f"config {str(file)!r} has more than {_LARGEST_FILE} bytes: is it the right file?"
            )
        document = tomllib.loads(data.decode())
    except OSError as error:
        raise UsageError(f"config {str(file)!r} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"config {str(file)!r} is not TOML: {error}") from error
    for name, value in document.items():
        if name not in SECTIONS:
            raise UsageError(
                f"{file}: [{name}]: there is no such section{_nearest(name, SECTIONS)}; options stand below "
                "[edge] or [cloud]"
            )
        if not isinstance(value, dict):
            raise UsageError(f"{file}: {name} is {value!r}: a section [{name}] would be right")
    found: dict[str, Any] = document.get(section, {})
    return found


def _nearest(name: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _from_text(text: str, option: Option, where: str) -> Any:
    if option.many:
        # Not commas: an address may have some, behind its #.
        return [_one_from_text(part, option, where) for part in text.split()]
    return _one_from_text(text, option, where)


def _one_from_text(text: str, option: Option, where: str) -> Any:
    try:
        if option.kind is bool:
            return _TRUTHS[text.strip().lower()]
        if option.kind in (int, float):
            return option.kind(text)
    except (KeyError, ValueError):
        raise _wrong(text, option, where) from None
    return text


def _checked(value: Any, option: Option, where: str) -> Any:
    if option.many:
        # One value may stand as it is.
        return [_checked_one(one, option, where) for one in (value if isinstance(value, list) else [value])]
    return _checked_one(value, option, where)


def _checked_one(value: Any, option: Option, where: str) -> Any:
    kind = option.kind
    if option.parse is not None:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise _wrong(value, option, where)
        try:
            return option.parse(str(value))
        except UsageError as error:
            raise UsageError(f"{where} is {value!r}: {error}") from error
    if issubclass(kind, Enum):
        fits = value in [member.value for member in kind]
    elif kind is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
    elif kind is int:
        fits = isinstance(value, int) and not isinstance(value, bool)
    else:
        fits = isinstance(value, bool if kind is bool else str)
    if fits and kind in (int, float):
        fits = (option.least is None or value >= option.least) and (
            option.most is None or value <= option.most
        )
    if not fits:
        raise _wrong(value, option, where)
    return value


def _wrong(value: Any, option: Option, where: str) -> UsageError:
    return UsageError(f"{where} is {value!r}: {option.wanted} would be right")
