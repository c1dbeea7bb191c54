"""`acespec top`: figures off a gateway's metrics, in a terminal and as JSON, and how it ends."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from acespec_edge import cli
from acespec_edge.errors import LinkError, PeerError, UsageError
from acespec_edge.keyring import Keyring
from acespec_edge.listening import listen
from acespec_edge.scrape import Scrape, sample, scrape
from tests.clock import LIMIT
from tests.python.edge_kit import runtime
from tests.python.gateway_kit import Live, chat_bundle, serving, writes
from tests.python.test_gateway_commands import ENVIRONMENT

TARGET = writes("hello there, edge.")
Acespec = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    bundle = chat_bundle(tmp_path_factory.mktemp("top"))
    with serving(runtime(bundle, TARGET, TARGET)) as live:
        assert live.chat(max_tokens=18, temperature=0).status_code == 200
        yield live


@pytest.fixture
def acespec(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Acespec:
    def go(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["acespec", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return go


def address(live: Live) -> str:
    return f"http://127.0.0.1:{live.port}"


def test_one_sample_as_json(live: Live, acespec: Acespec) -> None:
    status, out, err = acespec("top", "--url", address(live), "--json", "--interval", "0.2")
    found = json.loads(out)
    assert (status, err, out.count("\n")) == (0, "", 1)
    assert found["tokens"] == 18 and found["requests"] == 1 and found["failed"] == 0
    assert found["tokens_per_second"] == 0 and not found["running"]
    assert found["rtt_ms"] is not None and found["chain_length"] is not None
    assert 0 <= found["hit_rate"] <= 1 and found["tokens_per_round"] > 1
    assert found["model"] == "fake-64" and found["choices"]


def test_without_a_terminal_it_prints_once_in_80_columns(live: Live, acespec: Acespec) -> None:
    status, out, _ = acespec("top", "--url", address(live) + "/v1", "--interval", "0.2")
    assert status == 0 and "tokens/s" in out and "hit rate" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def scraped(at: float, **sums: float) -> Scrape:
    return Scrape(at, {f"acespec_edge_{name}": value for name, value in sums.items()}, {}, {"bundle": "b"})


def test_rates_and_shares_are_of_the_time_between() -> None:
    before = scraped(10.0, tokens_total=100, rounds_total=10, accepted_nodes_total=40)
    now = scraped(12.0, tokens_total=130, rounds_total=20, accepted_nodes_total=50)
    assert sample(now, before).tokens_per_second == 15
    assert sample(now, before).tokens_per_round == 2.0
    assert sample(now).tokens_per_round == 3.5 and sample(now).tokens_per_second == 0
    assert sample(now, now).tokens_per_round == 3.5
    # A gateway that began anew counts from zero.
    assert sample(before, scraped(5.0, tokens_total=1000)).tokens_per_second == 0
    assert sample(scraped(1.0)).hit_rate is None and sample(scraped(1.0)).rtt_ms is None


def test_who_does_not_answer_is_named(live: Live) -> None:
    for wrong in ("ftp://x", "127.0.0.1:80", "http://", "http://x:99999999"):
        with pytest.raises(UsageError, match="url is"):
            scrape(wrong)
    with listen("127.0.0.1", 0, unacknowledged_ms=1000) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(LinkError, match="no gateway answers"):
            scrape(f"http://127.0.0.1:{port}", timeout=0.2)
    with pytest.raises(LinkError, match="acespec serve starts one"):
        scrape(f"http://127.0.0.1:{port}")


def test_a_cloud_is_no_gateway() -> None:
    from tests.cloud.live import served

    with served() as (_, url, _), pytest.raises(PeerError, match="not those of an edge gateway"):
        scrape(f"http://{url.split('/')[2]}")


def test_the_key_comes_from_its_file(tmp_path: Path, acespec: Acespec) -> None:
    keys = tmp_path / "keys"
    keys.write_text("the-key\n", encoding="utf-8")
    with serving(runtime(chat_bundle(tmp_path / "bundle"), TARGET, TARGET), Keyring.of("the-key")) as live:
        status, _, err = acespec("top", "--url", address(live), "--json")
        assert status == 2 and "give --api-key-file" in err
        shown = acespec(
            "top", "--url", address(live), "--json", "--interval", "0.2", "--api-key-file", str(keys)
        )
        assert shown[0] == 0


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_in_a_terminal_it_is_live_and_ctrl_c_is_clean(live: Live) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-c", "from acespec_edge.cli import main; main()", "top", "--interval", "0.2"]
    process = subprocess.Popen(
        [*command, "--url", address(live)],
        stdin=slave,
        stdout=slave,
        stderr=subprocess.PIPE,
        env={**ENVIRONMENT, "TERM": "xterm"},
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(slave)
    shown = b""
    try:
        deadline = time.monotonic() + LIMIT
        while shown.count(b"round trip") < 2:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([master], [], [], left)[0], shown
            shown += os.read(master, 65536)
        os.write(master, b"\x03")
        assert process.stderr is not None
        assert process.wait(LIMIT) == 0
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        os.close(master)
