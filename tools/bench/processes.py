"""Servers as child processes: started, waited for, and stopped again whatever happens."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from acespec_edge.errors import LinkError, UsageError
from tools.bench.pairs import Pair

_STOP_SECONDS = 10.0


def script(name: str) -> str:
    """A console script of the environment that this interpreter belongs to."""
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        raise UsageError(f"{name} is not installed beside {sys.executable}: pip install -e .")
    return path


@contextlib.contextmanager
def server(
    command: Sequence[str], ready: str, log: Path, *, timeout: float, core: int | None = None
) -> Iterator[str]:
    """Runs `command` until the block ends; gives the first group of the pattern `ready` once a line matches
    it.

    All output goes to `log`. `core` pins it to one CPU. Raises LinkError with the end of the output when the
    process ends or `timeout` seconds pass before it is ready.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    # A session of its own: an interrupt at the terminal reaches this process only, which stops the child.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    answer: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_watch, args=(process, ready, log, answer), daemon=True)
    reader.start()
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        try:
            found = answer.get(timeout=timeout)
            why = f"ended with status {process.wait(_STOP_SECONDS)}" if found is None else ""
        except queue.Empty:
            why = f"was not ready within {timeout:g} s"
        if why:
            end = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise LinkError(f"{Path(command[0]).name} {why}; the end of {log}:\n{end}")
        assert found is not None
        yield found
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(_STOP_SECONDS)


def cloud(pair: Pair, log: Path, *, core: int | None = None) -> contextlib.AbstractContextManager[str]:
    """`acespec-cloud serve` of a pair's target on one thread, padded as the pair says; gives HOST:PORT."""
    command = [
        script("acespec-cloud"),
        "serve",
        "--model",
        pair.target,
        "--device",
        "cpu",
        "--dtype",
        "float32",
    ]
    command += ["--threads", "1", "--port", "0"]
    command += ["--emulate-verify-ms", ",".join(f"{value:g}" for value in pair.verify_ms)]
    return server(command, r"ready .*//([^/\s]+)/v1/spec", log, timeout=300.0, core=core)


def wan(to: str, *, rtt: str, up: str, down: str, log: Path) -> contextlib.AbstractContextManager[str]:
    """`acespec wan` in front of `to`; gives HOST:PORT."""
    command = [script("acespec"), "wan", "--listen", "127.0.0.1:0", "--to", to, "--rtt", rtt]
    command += ["--up", up, "--down", down, "--json"]
    return server(command, r'"listen": "([^"]+)"', log, timeout=30.0)


def _watch(
    process: subprocess.Popen[str], ready: str, log: Path, answer: queue.SimpleQueue[str | None]
) -> None:
    assert process.stdout is not None
    with log.open("w") as file, process.stdout:
        for line in process.stdout:
            file.write(line)
            file.flush()
            if (match := re.search(ready, line)) is not None:
                answer.put(match[1])
    answer.put(None)


def spare_cores() -> tuple[int | None, int | None]:
    """One CPU for the edge and another for the cloud, where this process may use two; else None."""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 else (None, None)


@contextlib.contextmanager
def pin(core: int | None) -> Iterator[None]:
    """Keeps this thread, and those started within the block, on one CPU."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
