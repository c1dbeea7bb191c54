"""The path that breaks, and the tool that counts what that does to texts."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clock import LIMIT, wait_until
from tools.bench import faults
from tools.bench.fault_path import Fault, FaultPath, Kind

pytestmark = pytest.mark.usefixtures("threads_end")


@contextlib.contextmanager
def echoing() -> Iterator[int]:
    """A server that says everything again; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ends: list[socket.socket] = []

        def echo(end: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := end.recv(65536):
                    end.sendall(data)
                end.shutdown(socket.SHUT_WR)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    end, _ = server.accept()
                    ends.append(end)
                    threading.Thread(target=echo, args=(end,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for end in ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


@contextlib.contextmanager
def through(*given: Fault) -> Iterator[tuple[FaultPath, socket.socket]]:
    with (
        echoing() as port,
        FaultPath(port, given) as path,
        socket.create_connection(("127.0.0.1", path.port), LIMIT) as end,
    ):
        yield path, end


def heard(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := end.recv(count - len(data))):
        data += more
    return data


def test_without_a_fault_everything_passes() -> None:
    with through() as (path, end):
        end.sendall(b"x" * 100_000)
        assert heard(end, 100_000) == b"x" * 100_000
        assert path.struck is None


@pytest.mark.parametrize("kind", ["reset", "end", "restart"])
def test_a_break_lets_through_what_came_before_it_to_the_byte(kind: Kind) -> None:
    with through(Fault(kind, 15, 0.2)) as (path, end):
        end.sendall(b"0123456789")
        with contextlib.suppress(ConnectionResetError):
            assert heard(end, 10) in (b"", b"01234")
            assert end.recv(1) == b""
        assert path.struck is not None
        assert path.struck[1] == kind


@pytest.mark.parametrize("kind", ["hole", "outage", "mute"])
def test_a_silent_fault_tells_nobody(kind: Kind) -> None:
    with through(Fault(kind, 10, 0.0)) as (path, end):
        end.sendall(b"0123456789")
        wait_until(lambda: path.struck is not None)
        end.settimeout(0.2)
        with pytest.raises(TimeoutError):
            end.recv(1)
        end.sendall(b"more")


def test_a_deaf_cloud_still_speaks() -> None:
    with through(Fault("deaf", 25)) as (_, end):
        end.sendall(b"0123456789")
        assert heard(end, 10) == b"0123456789"
        end.sendall(b"abcdefghij")
        assert heard(end, 5) == b"abcde"
        end.settimeout(0.2)
        with pytest.raises(TimeoutError):
            end.recv(1)


def test_a_pause_loses_nothing() -> None:
    with through(Fault("pause", 5, 0.3)) as (_, end):
        began = time.monotonic()
        end.sendall(b"0123456789")
        assert heard(end, 10) == b"0123456789"
        assert time.monotonic() - began >= 0.3


def test_an_outage_refuses_and_ends() -> None:
    with through(Fault("outage", 0, 0.3)) as (path, end):
        end.sendall(b"x")
        wait_until(lambda: path.struck is not None)

        def answers() -> bool:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", path.port), LIMIT) as other,
            ):
                other.sendall(b"y")
                return other.recv(1) == b"y"
            return False

        assert not answers()
        wait_until(answers)


def test_schedules_repeat_by_their_seed() -> None:
    one, same, other = (faults.schedule(random.Random(seed), 0.2) for seed in (1, 1, 2))
    assert one == same != other
    assert 1 <= len(one) <= 4


def test_a_few_schedules_and_their_report(capsys: pytest.CaptureFixture[str]) -> None:
    """W1 and W2 at random places; ``make`` does not run the hundreds that the tool is for."""
    assert faults.main(["--schedules", "6", "--seed", "3", "--tokens", "24", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (report["schedules"], report["tokens"]) == (6, 6 * 24)
    assert [report[name] for name in ("lost", "duplicated", "changed", "failed")] == [0, 0, 0, 0]
    assert report["reconnects"] > 0


def test_differences_are_counted_and_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(faults, "_plainly", lambda *_: [99] * 26)
    assert faults.main(["--schedules", "1", "--tokens", "24"]) == 1
    out = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (out["lost"], out["duplicated"], out["changed"]) == ("2", "0", "24")


@pytest.mark.parametrize("wrong", [["--schedules", "0"], ["--floor", "0"], ["--workers", "-1"]])
def test_bad_numbers_are_status_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert faults.main(wrong) == 2
    assert wrong[0] in capsys.readouterr().err
