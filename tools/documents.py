# ruff: noqa: E501 (lines of Markdown are a little longer)
"""Writes what is read off the code: docs/configuration.md, deploy/acespec.toml, docs/api.md.

`python -m tools.documents` after a change of an option or of the Python API; the tests say when.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, ForwardRef

import acespec_edge
from acespec_edge.commands.serve import serve as serve_edge
from acespec_edge.config import Option, options_of, toml_value, variable
from acespec_edge.request import Options
from cloud_stub.cli import serve as serve_cloud

ROOT: Final = Path(__file__).parents[1]

_COMMANDS: Final[Mapping[str, tuple[str, Callable[..., Any]]]] = {
    "edge": ("acespec serve", serve_edge),
    "cloud": ("acespec-cloud serve", serve_cloud),
}
_SAMPLES: Final = {"bundle": "bundles/qwen-0.5b", "cloud": ["wss://llm.example.com:8443/v1/spec"]}
_CODE: Final = re.compile(r"``(.+?)``", re.DOTALL)

_ERRORS: Final = {
    "AcespecError": "Whatever goes wrong here is one.",
    "UsageError": "The caller's fault: the message names the field, its value and what would be right.",
    "PeerError": "The cloud broke the protocol, or reported a fault of its own.",
    "EngineError": "The model runtime failed: it is missing, the model does not load, or a forward went wrong.",
}
"""Of classes that the native module defines."""

_CONFIGURATION: Final = """\
# Configuration

<!-- Written by `python -m tools.documents` from the options of the commands. -->

Every option of `acespec serve` and `acespec-cloud serve` can be given in four places. The first that has it decides:

1. an argument: `--port 8080`
2. an environment variable: `ACESPEC_EDGE_PORT=8080`, `ACESPEC_CLOUD_PORT=8443`
3. a TOML file: `port = 8080` below `[edge]` or `[cloud]`
4. the default

The file is named by `--config FILE`, or by `ACESPEC_CONFIG`. One file may have both sections; each command reads its own.
[deploy/acespec.toml](../deploy/acespec.toml) has every option with its default. Relative paths start at the working
directory. A list is `["a", "b"]` in the file and `a b` in a variable; one value needs no brackets. `acespec doctor` reads `[edge]`, too.

A key that there is not is an error that names the nearest one, and so is a value of another kind or out of its bounds:

```
$ acespec serve --config acespec.toml
acespec: acespec.toml: [edge] prot: there is no such option; did you mean port?
```

`acespec config check FILE` looks at a file, and at the paths in it, without starting anything; `acespec config show
--config FILE` prints every value and who decided it. `acespec-cloud config` does the same for `[cloud]`.

Secrets stand in files of their own: `token_file` and `api_key_file` name them. The bearer token may also come in
`ACESPEC_TOKEN`. `ACESPEC_HOME` is where models are kept (`~/.cache/acespec`).
"""

_EXAMPLE: Final = """\
# Every option of `acespec serve` and `acespec-cloud serve`, with its default, or an example where there is none.
# Written by `python -m tools.documents`. A line without its # counts; docs/configuration.md has the rules.
"""

_API: Final = """\
# Python API

<!-- Written by `python -m tools.documents` from the docstrings. -->

Everything here is imported from `acespec_edge`. The package is typed; what is not listed is not part of the contract.

```python
from acespec_edge import EdgeRuntime

with EdgeRuntime("bundles/qwen-0.5b", cloud="wss://llm.example.com:8443/v1/spec", token_file="token") as edge:
    for piece in edge.stream("Write a haiku about rain.", max_tokens=64):
        print(piece.text, end="", flush=True)
```
"""


def configuration() -> str:
    """docs/configuration.md."""
    parts = [_CONFIGURATION]
    for section, (name, command) in _COMMANDS.items():
        parts.append(
            f"\n## [{section}]: {name}\n\n| key | variable | value | default | |\n| --- | --- | --- | --- | --- |\n"
        )
        for key, option in options_of(command).items():
            default = (
                "must be given"
                if option.required
                else f"`{option.default_text}`"
                if option.default_text
                else ""
            )
            cells = (
                f"`{key}`",
                f"`{variable(section, key)}`",
                _cell(option.wanted),
                default,
                _cell(option.help),
            )
            parts.append(f"| {' | '.join(cells)} |\n")
    return "".join(parts)


def example() -> str:
    """deploy/acespec.toml."""
    parts = [_EXAMPLE]
    for section, (_, command) in _COMMANDS.items():
        parts.append(f"\n[{section}]\n")
        for key, option in options_of(command).items():
            help = option.help if option.help.endswith(".") else f"{option.help}."
            parts.append(f"# {help} {option.wanted[0].upper()}{option.wanted[1:]}.\n")
            parts.append(f"# {key} = {option.default_text or _sample(option)}\n")
    return "".join(parts)


def api() -> str:
    """docs/api.md."""
    parts = [_API]
    for name in sorted(acespec_edge.__all__, key=lambda one: (one != "EdgeRuntime", one)):
        parts.append(_class(name, getattr(acespec_edge, name)))
    parts.append("\n## Options of a request\n\nKeywords of `generate`, `stream` and their kind.\n\n")
    parts.append(_fields(Options))
    return "".join(parts)


def documents() -> dict[Path, str]:
    """Text of every file that is written here, by path."""
    return {
        ROOT / "docs/configuration.md": configuration(),
        ROOT / "deploy/acespec.toml": example(),
        ROOT / "docs/api.md": api(),
    }


def _sample(option: Option) -> str:
    """A value for an option that has no default."""
    if option.key in _SAMPLES:
        return toml_value(_SAMPLES[option.key])
    if option.many:
        return "[]"
    if option.kind in (int, float):
        return toml_value(option.kind(option.least or 1))
    return '"..."'


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _class(name: str, kind: type) -> str:
    bases = [base.__name__ for base in kind.__bases__ if base is not object]
    head = f"\n## {name}\n\n" + (f"A `{bases[0]}`.\n\n" if bases else "")
    parts = [head, _prose(_ERRORS.get(name) or inspect.getdoc(kind) or ""), "\n"]
    init = kind.__dict__.get("__init__")
    if inspect.isfunction(init) and init.__doc__ and not _is_dataclass(kind):
        parts += [f"\n```python\n{_signature(name, init)}\n```\n\n", _prose(inspect.getdoc(init) or ""), "\n"]
    if _is_dataclass(kind):
        parts += ["\n", _fields(kind)]
    for member, value in vars(kind).items():
        if member.startswith("_"):
            continue
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(function):
            text = _prose(inspect.getdoc(function) or "")
            parts += [
                f"\n### {name}.{member}\n\n```python\n{_signature(member, function)}\n```\n",
                text and f"\n{text}\n",
            ]
        elif isinstance(value, property) and value.fget is not None:
            text = _prose(inspect.getdoc(value) or "")
            parts += [
                f"\n### {name}.{member}\n\nA property: `{_returned(value.fget)}`.",
                f" {text}\n" if text else "\n",
            ]
    return "".join(parts)


def _is_dataclass(kind: type) -> bool:
    return "__dataclass_fields__" in vars(kind)


def _signature(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    shown = [
        parameter.replace(annotation=_text(parameter.annotation))
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    lines = [re.sub(r": '(.*?)'", r": \1", str(parameter)) for parameter in shown]
    star = next((number for number, one in enumerate(shown) if one.kind is one.KEYWORD_ONLY), None)
    if star is not None:
        lines.insert(star, "*")
    result = "" if name[0].isupper() else f" -> {_returned(function)}"
    whole = f"{name}({', '.join(lines)}){result}"
    if len(whole) <= 100:
        return whole
    return f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + f"){result}"


def _returned(function: Callable[..., Any]) -> str:
    return _text(inspect.signature(function).return_annotation)


def _text(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _fields(kind: type) -> str:
    """A table of the fields of a class, each with the text that stands below it in the source."""
    source = inspect.getsource(kind)
    texts = dict(re.findall(r'^    (\w+):[^\n]*\n    """(.*?)"""', source, re.DOTALL | re.MULTILINE))
    lines = ["| field | type | |\n| --- | --- | --- |\n"]
    for name, annotation in kind.__annotations__.items():
        text = _prose(textwrap.dedent(texts.get(name, ""))).replace("\n", " ")
        lines.append(f"| `{name}` | `{_cell(_text(annotation))}` | {_cell(re.sub(' +', ' ', text))} |\n")
    return "".join(lines)


def _prose(text: str) -> str:
    """A docstring as Markdown."""
    return _CODE.sub(r"`\1`", text).strip()


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
