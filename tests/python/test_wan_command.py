"""The options of the WAN emulator, and `acespec wan`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from acespec_edge.errors import LinkError, UsageError
from acespec_edge.wan import wan_thread
from tests.python.wan_kit import TIMEOUT, echo, far_end, near_end, read_exactly

ACESPEC = [sys.executable, "-c", "from acespec_edge.cli import main; main()"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rtt": "100"}, "rtt is '100': give a duration such as 100ms"),
        ({"rtt": -1.0}, "rtt is -1.0"),
        ({"up": "fast"}, "up is 'fast': give a rate such as 50kbit"),
        ({"down": "0mbit"}, "down is '0mbit': a rate must be above zero"),
        ({"jitter": "5 min"}, "jitter is '5 min'"),
        ({"outages": "5s"}, "outage is '5s': give START:DURATION"),
        ({"outages": "5s:0s"}, "duration must be above zero"),
        ({"outages": "1s:2s,2s:1s"}, "begins before"),
        ({"queue_bytes": 0}, "queue_bytes is 0"),
        ({"to": "nowhere"}, "to is 'nowhere': give HOST:PORT"),
        ({"listen": "127.0.0.1:99999"}, "listen is '127.0.0.1:99999'"),
    ],
)
def test_bad_values_are_named(options: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"to": "127.0.0.1:1", **options}
    with pytest.raises(UsageError, match=re.escape(message)), wan_thread(**arguments):  # type: ignore[arg-type]
        pass


def test_an_address_in_use_is_a_link_error() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(LinkError, match=r"cannot listen on 127\.0\.0\.1"),
        wan_thread("127.0.0.1:1", listen=f"127.0.0.1:{taken.getsockname()[1]}"),
    ):
        pass


def test_the_command_reports_its_address_and_what_it_carried() -> None:
    command = [*ACESPEC, "wan", "--json", "--listen", "127.0.0.1:0", "--rtt", "20ms", "--down", "1mbit"]
    environment = _child_environment()
    with (
        far_end(echo) as to,
        subprocess.Popen(
            [*command, "--to", to], stdout=subprocess.PIPE, text=True, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["listen"]
        with near_end(address) as end:
            end.sendall(b"ping")
            assert read_exactly(end, 4) == b"ping"
        process.send_signal(signal.SIGINT)
        carried = json.loads(process.communicate(timeout=TIMEOUT)[0])
    assert process.returncode == 0
    assert (carried["up_bytes"], carried["down_bytes"], carried["connections"]) == (4, 4, 1)


def test_the_command_names_a_bad_option() -> None:
    command = [*ACESPEC, "wan", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--rtt", "fast"]
    done = subprocess.run(command, capture_output=True, text=True, env=_child_environment(), timeout=TIMEOUT)
    assert done.returncode == 2
    assert "rtt is 'fast': give a duration such as 100ms" in done.stderr


def _child_environment() -> dict[str, str]:
    """This process's import path for a child, whether the package is installed or not."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
