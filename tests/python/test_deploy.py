"""What is shipped for operators: generated documents are up to date, units are sound, every name is known."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

import acespec_edge
from acespec_edge.commands.serve import serve as serve_edge
from acespec_edge.config import options_of, read_settings, variable
from cloud_stub.cli import serve as serve_cloud
from tools.documents import documents

ROOT = Path(__file__).parents[2]
OPTIONS = {"edge": options_of(serve_edge), "cloud": options_of(serve_cloud)}
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
HARDENING = {
    "DynamicUser": "yes",
    "NoNewPrivileges": "yes",
    "PrivateTmp": "yes",
    "ProtectHome": "yes",
    "ProtectSystem": "strict",
    "CapabilityBoundingSet": "",
    "RestrictSUIDSGID": "yes",
}


@pytest.mark.parametrize("path", sorted(documents()), ids=lambda path: path.name)
def test_what_is_written_by_a_tool_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == documents()[path], "python -m tools.documents"


@pytest.mark.parametrize("section", list(OPTIONS))
def test_the_example_has_every_option_and_right_values(section: str, tmp_path: Path) -> None:
    text = (ROOT / "deploy/acespec.toml").read_text(encoding="utf-8")
    file = tmp_path / "all.toml"
    file.write_text(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE), encoding="utf-8")
    found = read_settings(section, OPTIONS[section], file, {})
    assert set(found) == set(OPTIONS[section])
    for key, option in OPTIONS[section].items():
        if option.default is not None and option.kind is not Path:
            assert found[key].value == option.default
    assert not read_settings(section, OPTIONS[section], ROOT / "deploy/acespec.toml", {})


def test_every_public_name_has_its_place() -> None:
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    for name in acespec_edge.__all__:
        assert f"\n## {name}\n" in text
        for member, value in vars(getattr(acespec_edge, name)).items():
            if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                assert f"### {name}.{member}\n" in text or f"| `{member}` |" in text


def unit(path: Path) -> dict[str, dict[str, list[str]]]:
    """Sections, keys and all their values."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    section = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("["):
            section = line.strip("[]")
            continue
        key, sign, value = line.partition("=")
        assert sign and section, line
        found[section][key].append(value)
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_are_confined_and_outlast_the_drain(path: Path) -> None:
    service = unit(path)["Service"]
    for key, value in HARDENING.items():
        assert service[key] == [value]
    side = path.stem.removeprefix("acespec-")
    drain = OPTIONS[side]["drain_seconds"].default
    assert float(service["TimeoutStopSec"][0]) > drain + 5
    (start,) = service["ExecStart"]
    given = re.findall(r"--([a-z-]+)", start)
    assert set(given) - {"config"} <= {key.replace("_", "-") for key in OPTIONS[side]}
    known = {variable(side, key) for key in OPTIONS[side]} | {"OMP_NUM_THREADS", "ACESPEC_HOME", "HF_HOME"}
    assert {value.partition("=")[0] for value in service["Environment"]} <= known


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_understands_the_units(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    text = path.read_text(encoding="utf-8")
    # The program is not installed here, and that is not what is asked.
    copy.write_text(re.sub(r"/opt/acespec/bin/\S+", "/bin/true", text), encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    ours = [line for line in shown.stderr.splitlines() if path.name in line]
    assert ours == []


def test_the_container_takes_options_that_there_are() -> None:
    text = (ROOT / "deploy/Containerfile").read_text(encoding="utf-8")
    names = set(re.findall(r"\bACESPEC_CLOUD_[A-Z_]+(?==)", text))
    assert names and names <= {variable("cloud", key) for key in OPTIONS["cloud"]}
    assert "\nUSER acespec\n" in text and ":latest" not in text


def test_documents_link_to_what_is_there() -> None:
    missing = []
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not (page.parent / target).exists():
                missing.append(f"{page.name}: {target}")
    assert not missing
