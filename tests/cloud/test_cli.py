"""The command: what it refuses, what it says, how it stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from acespec_edge.errors import UsageError
from cloud_stub import cli
from cloud_stub.scheduler import Pacing
from cloud_stub.server import Listener
from tests.cloud.rig import tiny_vocabulary
from tests.cloud.test_torch_verifier import SIZE, make_model

ROOT = Path(__file__).parents[2]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["acespec-cloud", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "host is '0.0.0.0'"),
        (["--emulate-verify-ms", "fast"], "emulate_verify_ms is 'fast'"),
        (["--token-file", "no-such-file"], "no-such-file"),
        (["--tls-cert", "cert.pem"], "--tls-key"),
        (["--tls-client-ca", "ca.pem"], "tls_client_ca is 'ca.pem'"),
        (["--device", "tpu"], "device is 'tpu'"),
        (["--dtype", "int3"], "dtype is 'int3'"),
        (["--threads", "0"], "threads is 0"),
    ],
)
def test_wrong_usage_is_named_and_exits_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(monkeypatch, "serve", "--model", "nothing", "--port", "0", *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("acespec-cloud: ") and words in error and "Traceback" not in error


def test_the_port_is_had_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Listener(port=0).bind() as taken:
        port = str(taken.getsockname()[1])
        assert run(monkeypatch, "serve", "--model", "nothing", "--port", port) == 2
    said = capsys.readouterr()
    assert f"cannot listen on 127.0.0.1:{port}" in said.err and "loading" not in said.out


def test_where_tokens_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokens"
    file.write_text("one name=kitchen sessions=2 nodes_per_second=400 context=4096\ntwo\n")
    monkeypatch.setenv("ACESPEC_TOKEN", "of-the-environment")
    keys = cli.read_keys(file)
    assert keys is not None and len(keys) == 2
    one = keys.find("Bearer one")
    assert one is not None and one.limits == {"sessions": 2, "nodes_per_second": 400, "context": 4096}
    keys = cli.read_keys(None)
    assert keys is not None and keys.find("Bearer of-the-environment") is not None
    monkeypatch.delenv("ACESPEC_TOKEN")
    assert cli.read_keys(None) is None
    file.write_text("one requests=2\n")
    with pytest.raises(UsageError, match=r"token_file .*line 1.*context=NUMBER, nodes_per_second=NUMBER"):
        cli.read_keys(file)


def test_pacing_is_read() -> None:
    assert cli.parse_pacing("150,1") == Pacing(150, 1)
    assert cli.parse_pacing("20") == Pacing(20, 0)
    for wrong in ("", "1,2,3", "-1,0", "nan", "inf,0"):
        with pytest.raises(UsageError, match="BASE,PER_NODE"):
            cli.parse_pacing(wrong)


def test_it_serves_a_folder_says_so_and_stops_on_ctrl_c(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path / "tiny")
    (tmp_path / "tiny" / "tokenizer.json").write_text(tiny_vocabulary(SIZE)._tokenizer.to_str())
    (tmp_path / "token").write_text("s3cret\n")
    command = [sys.executable, "-c", "from cloud_stub.cli import main; main()", "serve", "--port", "0"]
    command += ["--model", str(tmp_path / "tiny"), "--token-file", str(tmp_path / "token"), "--threads", "1"]
    command += ["--device", "cpu", "--emulate-verify-ms", "5,1", "--max-context", "100", "--kv-tokens", "300"]
    command += ["--keep-kv", "60"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "python")])
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert process.stdout is not None
    lines = []
    try:
        while not lines or not lines[-1].startswith("ready"):
            line = process.stdout.readline()
            assert line, process.communicate(timeout=30)[1]
            lines.append(line)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    said = "".join(lines)
    assert "tiny on cpu, float32" in said and "64 tokens" in said
    assert "100 tokens of context, 300 of all requests" in said
    assert "kept      60 s of what a request has read" in said
    assert "5 ms + 1 ms a node" in said and "ws://127.0.0.1:" in said
    assert rest == "stopped   0 tokens served\n" and errors == "" and process.returncode == 0
