"""Options from a file and the environment: which one wins, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from acespec_edge import cli
from acespec_edge.commands.configured import config_file
from acespec_edge.commands.serve import serve
from acespec_edge.config import Setting, options_of, read_settings, toml_value
from acespec_edge.endpoints import Endpoint
from acespec_edge.errors import UsageError
from acespec_edge.logs import LogFormat
from cloud_stub import cli as cloud_cli

Written = Callable[[str], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(text: str) -> Path:
        file = tmp_path / "acespec.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def even(text: str | int) -> int:
    if not str(text).isdecimal() or int(text) % 2:
        raise UsageError("it must be even")
    return int(text)


def command(
    name: Annotated[str, typer.Option()],
    port: Annotated[int, typer.Option(min=1, max=9)] = 5,
    scale: Annotated[float, typer.Option(min=0)] = 1.0,
    quick: Annotated[bool, typer.Option("--quick")] = False,
    folder: Annotated[Path | None, typer.Option("--the-folder")] = None,
    each: Annotated[list[int] | None, typer.Option()] = None,
    form: Annotated[LogFormat, typer.Option()] = LogFormat.text,
    pair: Annotated[Any, typer.Option(parser=even, metavar="EVEN")] = 2,
    config: Annotated[Path | None, config_file("edge", lambda: command)] = None,
) -> None:
    print(json.dumps([name, port, scale, quick, str(folder), each, form.value, pair]))


OPTIONS = options_of(command)


def read(file: Path | None, environment: dict[str, str] | None = None) -> dict[str, Setting]:
    return read_settings("edge", OPTIONS, file, environment or {})


def test_every_option_of_the_command_is_a_key() -> None:
    assert list(OPTIONS) == ["name", "port", "scale", "quick", "the_folder", "each", "form", "pair"]
    assert [key for key, option in OPTIONS.items() if option.required] == ["name"]
    assert OPTIONS["the_folder"].parameter == "folder" and OPTIONS["each"].many
    assert OPTIONS["port"].wanted == "a whole number from 1 to 9"


def test_the_environment_goes_before_the_file(written: Written) -> None:
    file = written('[edge]\nname = "a"\nport = 2\n[cloud]\nanything = 1\n')
    found = read(file, {"ACESPEC_EDGE_PORT": "3", "ACESPEC_TOKEN": "t", "ACESPEC_CLOUD_X": "y"})
    assert found == {"name": Setting("a", str(file)), "port": Setting(3, "ACESPEC_EDGE_PORT")}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("SCALE", "2.5", 2.5),
        ("QUICK", "True", True),
        ("QUICK", "0", False),
        ("EACH", "1 2", [1, 2]),
        ("FORM", "json", "json"),
        ("PAIR", "6", 6),
        ("THE_FOLDER", "/x", "/x"),
    ],
)
def test_variables_are_read_as_their_kind(name: str, text: str, value: object) -> None:
    (setting,) = read(None, {f"ACESPEC_EDGE_{name}": text}).values()
    assert setting.value == value and type(setting.value) is type(value)


def test_addresses_may_say_more_behind_their_number_sign(written: Written) -> None:
    """In a list as anywhere: its commas are theirs."""
    clouds = ["wss://a.example/v1#cost=2,token_file=/etc/a", "wss://b.example/v1"]
    options = options_of(serve)
    file = written(f"[edge]\ncloud = {json.dumps(clouds)}\n")
    assert read_settings("edge", options, file, {})["cloud"].value == clouds
    environment = {"ACESPEC_EDGE_CLOUD": " ".join(clouds)}
    found = read_settings("edge", options, None, environment)["cloud"].value
    assert found == clouds
    assert [Endpoint.parse(one, Endpoint("")).cost for one in found] == [2.0, 1.0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[edge]\nprot = 3", r"\[edge\] prot: there is no such option; did you mean port\?"),
        ("[egde]\nport = 3", r"\[egde\]: there is no such section; did you mean edge\?"),
        ("port = 3", r"\[port\]: there is no such section"),
        ("edge = 3", r"edge is 3: a section \[edge\]"),
        ("[edge]\nport = '3'", r"port is '3': a whole number from 1 to 9 would be right"),
        ("[edge]\nport = true", "port is True"),
        ("[edge]\nport = 0", "port is 0"),
        ("[edge]\nport = 3.0", "port is 3.0"),
        ("[edge]\nscale = inf", "scale is inf: a number of 0 or more"),
        ("[edge]\nscale = -1", "scale is -1"),
        ("[edge]\nquick = 1", "quick is 1: true or false"),
        ("[edge]\nthe_folder = 1", "the_folder is 1: a path"),
        ("[edge]\neach = 'a'", "each is 'a': a list, each a whole number"),
        ("[edge]\neach = [1, 'b']", "each is 'b'"),
        ("[edge]\nform = 'xml'", "form is 'xml': one of text, json"),
        ("[edge]\npair = 3", "pair is 3: it must be even"),
        ("[edge]\npair = true", "pair is True: EVEN would be right"),
        ("[edge\n", "is not TOML"),
        ("#" * (1 << 20) + "\n", "has more than"),
    ],
)
def test_what_is_wrong_is_named(written: Written, text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        read(written(text))


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("ACESPEC_EDGE_PROT", "3", "did you mean ACESPEC_EDGE_PORT"),
        ("ACESPEC_EDGE_PORT", "many", "ACESPEC_EDGE_PORT is 'many'"),
        ("ACESPEC_EDGE_PORT", "10", "ACESPEC_EDGE_PORT is 10"),
        ("ACESPEC_EDGE_QUICK", "maybe", "ACESPEC_EDGE_QUICK is 'maybe'"),
        ("ACESPEC_EDGE_SCALE", "nan", "ACESPEC_EDGE_SCALE is nan"),
        ("ACESPEC_EDGE_FORM", "xml", "ACESPEC_EDGE_FORM is 'xml'"),
    ],
)
def test_a_wrong_variable_is_named(name: str, text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        read(None, {name: text})


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path / "missing.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not TOML"):
        read(tmp_path / "bytes.toml")


def test_one_value_is_a_list_of_one(written: Written) -> None:
    assert read(written("[edge]\neach = 1\n"))["each"].value == [1]
    assert read(None, {"ACESPEC_EDGE_EACH": "1"})["each"].value == [1]


def test_values_survive_toml(written: Written) -> None:
    lines = [f"{key} = {toml_value(value)}" for key, value in [("name", 'a "b" \\c'), ("each", [1, 2])]]
    found = read(written("[edge]\n" + "\n".join([*lines, f"form = {toml_value(LogFormat.json)}"])))
    assert [setting.value for setting in found.values()] == ['a "b" \\c', [1, 2], "json"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[object]]:
    app = typer.Typer()
    app.command()(command)

    def go(*arguments: str, **environment: str) -> list[object]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        app(list(arguments), standalone_mode=False)
        found: list[object] = json.loads(capsys.readouterr().out)
        return found

    return go


def test_arguments_go_before_all(run: Callable[..., list[object]], written: Written) -> None:
    file = written(
        "[edge]\nname = 'file'\nport = 2\nscale = 3\nquick = true\neach = [4]\nform = 'json'\npair = 4\n"
    )
    found = run("--config", str(file), "--port", "7", ACESPEC_EDGE_NAME="variable", ACESPEC_EDGE_PORT="6")
    assert found == ["variable", 7, 3.0, True, "None", [4], "json", 4]


def test_the_file_may_come_from_the_environment(run: Callable[..., list[object]], written: Written) -> None:
    file = written("[edge]\nname = 'file'\nthe_folder = '/x'\n")
    assert run(ACESPEC_CONFIG=str(file))[:5] == ["file", 5, 1.0, False, "/x"]


Acespec = Callable[..., tuple[int, str, str]]


@pytest.fixture
def acespec(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Acespec:
    def go(*arguments: str, program: Callable[[], None] = cli.main) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["acespec", *arguments])
        with pytest.raises(SystemExit) as ended:
            program()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return go


def test_show_says_where_values_come_from(
    acespec: Acespec, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written("[edge]\nport = 81\n[cloud]\nport = 82\n")
    monkeypatch.setenv("ACESPEC_EDGE_THREADS", "2")
    status, out, err = acespec("config", "show", "--config", str(file), "--json")
    values = json.loads(out)["edge"]
    assert (status, err) == (0, "")
    assert values["port"] == {"value": 81, "source": str(file)}
    assert values["threads"] == {"value": 2, "source": "ACESPEC_EDGE_THREADS"}
    assert values["cache_mb"]["source"] == "default"
    assert set(values) == set(options_of(serve))
    status, out, _ = acespec("config", "show", "--config", str(file), program=cloud_cli.main)
    assert status == 0 and "port = 82" in out


def test_check_looks_for_the_files(acespec: Acespec, written: Written, tmp_path: Path) -> None:
    file = written(f"[edge]\nport = 81\ntoken_file = '{tmp_path}/none'\n")
    status, _, err = acespec("config", "check", str(file))
    assert status == 2 and "token_file is" in err and "no such file" in err
    file = written(f"[edge]\nbundle = '{tmp_path}'\n")
    status, out, _ = acespec("config", "check", str(file))
    assert status == 0 and "[edge] is right, 1 of" in out and "command line" not in out
    status, out, _ = acespec("config", "check", str(file), program=cloud_cli.main)
    assert status == 0 and "to be given on the command line: --model" in out


def test_serve_takes_its_options_from_the_file(acespec: Acespec, written: Written) -> None:
    status, _, err = acespec("serve", "--config", str(written("[edge]\nbundle = '/nowhere'\nport = 0\n")))
    assert status == 2 and "/nowhere: there is no such folder" in err
    status, _, err = acespec("serve", "--config", str(written("[edge]\nbnudle = '/nowhere'\n")))
    assert status == 2 and "did you mean bundle?" in err
