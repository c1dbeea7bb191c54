"""Fetches the headers of the ONNX Runtime C and C++ API, pinned to API 21, into a folder.

They come from Debian's package libonnxruntime-dev, through this machine's own apt: its mirror, its proxy
settings. Nothing is installed and no root is needed. The package's SHA-256 is fixed here, so any mirror will
do; the headers are the same on every CPU.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "pool/main/o/onnxruntime/libonnxruntime-dev_1.21.0+dfsg-1_amd64.deb"
SHA256 = "14f7d959d5deacbcf1504830d4189f91fc67382b399ed9ae9d3aa9c4050ced08"
APT_HELPER = Path("/usr/lib/apt/apt-helper")
SOURCES = Path("/etc/apt")
TIMEOUT_S = 120

ADVICE = """\
Get them in one of these ways, then configure again:
  * Debian 13, Ubuntu 25.04 or newer: apt install libonnxruntime-dev
  * otherwise unpack the release archive of ONNX Runtime 1.21 or newer for your system and set
    -DACESPEC_ORT_INCLUDE_DIR=FOLDER (cmake), or CMAKE_ARGS=-DACESPEC_ORT_INCLUDE_DIR=FOLDER (pip),
    FOLDER being the one that holds onnxruntime_c_api.h"""


class FetchError(Exception):
    """The headers could not be had; the message says why."""


def debian_mirrors(folder: Path) -> list[str]:
    """The Debian archives that apt's source files below ``folder`` name, in order, each once."""
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    mirrors: list[str] = []
    for file in files:
        if file.suffix not in (".list", ".sources") or not file.is_file():
            continue
        for line in file.read_text(errors="replace").splitlines():
            if line.lstrip().startswith("#"):
                continue
            mirrors += [uri.rstrip("/") for uri in re.findall(r"\bhttps?://\S+/debian/?(?=\s|$)", line)]
    return list(dict.fromkeys(mirrors))


def download(mirror: str, file: Path) -> None:
    """Fetches the package from ``mirror``; apt checks its hash. Raises FetchError."""
    command = [str(APT_HELPER), "-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30"]
    command += ["download-file", f"{mirror}/{PACKAGE}", str(file), f"SHA256:{SHA256}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise FetchError(f"{mirror}: no answer within {TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise FetchError(f"{mirror}: {(done.stderr or done.stdout).strip()}")


def fetch(target: Path) -> None:
    """Makes ``target`` a folder of the headers; it appears whole or not at all. Raises FetchError."""
    mirrors = debian_mirrors(SOURCES)
    if not mirrors or not APT_HELPER.exists():
        raise FetchError("this machine's apt names no Debian archive to take them from")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        package = Path(scratch) / "package.deb"
        failures: list[str] = []
        for mirror in mirrors:
            try:
                download(mirror, package)
                break
            except FetchError as error:
                failures.append(str(error))
        else:
            raise FetchError("\n".join(failures))
        unpacked = Path(scratch) / "unpacked"
        subprocess.run(["dpkg-deb", "-x", str(package), str(unpacked)], check=True, timeout=TIMEOUT_S)
        shutil.rmtree(target, ignore_errors=True)
        (unpacked / "usr/include/onnxruntime").rename(target)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch the ONNX Runtime headers (API 21).")
    parser.add_argument("target", type=Path, help="folder to create; replaced when it exists")
    arguments = parser.parse_args()
    try:
        fetch(arguments.target)
    except (FetchError, OSError, subprocess.SubprocessError) as error:
        print(f"The ONNX Runtime headers could not be fetched: {error}\n{ADVICE}", file=sys.stderr)
        return 1
    print(f"ONNX Runtime headers: {arguments.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
