"""The rooms of the C++ library include only what their targets link, and libraries stay in their place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
ROOMS = {
    path.parent.relative_to(CSRC / "acespec").as_posix(): path.read_text(encoding="utf-8")
    for path in (CSRC / "acespec").rglob("CMakeLists.txt")
}
INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]', re.MULTILINE)


def links(room: str) -> set[str]:
    """Rooms that ``room`` links, directly or through another, and itself."""
    reached = {room}
    _, _, listed = ROOMS[room].partition("LINKS")
    for name in re.findall(r"\bacespec_(\w+)", listed.partition(")")[0]):
        reached |= links(name.replace("engine_", "engine/"))
    return reached


def sources(room: str) -> list[Path]:
    return sorted(path for path in (CSRC / "acespec" / room).glob("*.*") if path.suffix in {".h", ".cpp"})


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_includes_only_what_it_links(room: str) -> None:
    allowed = links(room)
    assert sources(room)
    for path in sources(room):
        for header in INCLUDE.findall(path.read_text(encoding="utf-8")):
            if header.startswith("acespec/"):
                home = header.removeprefix("acespec/").rpartition("/")[0]
                assert home in allowed, f"{path.name} includes {header}; {room} links {sorted(allowed)}"


def test_policy_reads_no_clock() -> None:
    """Time is its argument, so that a simulator's seconds are as good as real ones."""
    assert links("policy") == {"policy", "base"}
    for path in sources("policy"):
        assert not {"chrono", "ctime", "thread"} & set(INCLUDE.findall(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("library", "home"),
    [("pybind11/", "bindings"), ("onnxruntime_", "acespec/engine/ort"), ("dlfcn", "acespec/engine/ort")],
)
def test_a_library_stays_in_its_place(library: str, home: str) -> None:
    users = {
        path.parent.relative_to(CSRC).as_posix()
        for path in CSRC.rglob("*.*")
        if any(header.startswith(library) for header in INCLUDE.findall(path.read_text(encoding="utf-8")))
    }
    assert users == {home}
