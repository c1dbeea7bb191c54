"""`acespec serve` and `acespec chat`: what is printed where, and how they end."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from acespec_edge import _core, cli
from acespec_edge.edge import EdgeRuntime
from tests.clock import LIMIT, wait_until
from tests.python.fake_bundle import EOS, make_bundle
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import FakeDrafter, scripted
from tests.python.gateway_kit import TEMPLATE, chat_bundle

VECTORS = Path(__file__).parents[1] / "vectors"
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT), *sys.path])}


def bundle_on_disk(folder: Path) -> Path:
    """A bundle with a model that loads, for the real command."""
    made = asdict(chat_bundle(folder))
    shutil.copy(VECTORS / "tiny_model.onnx", folder / "model.onnx")
    made |= {"layers": 2, "kv_heads": 2, "kv_width": 16, "max_positions": 512}
    made["sha256"] = {"model.onnx": "", "tokenizer.json": ""}
    del made["path"]
    (folder / "acespec.json").write_text(json.dumps(made), encoding="utf-8")
    return folder


@contextlib.contextmanager
def serve(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The command as a process, and its lines until it is ready."""
    command = [sys.executable, "-c", "from acespec_edge.cli import main; main()", "serve", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or not lines[-1].startswith("ready"):
                line = process.stdout.readline()
                assert line, process.communicate()[1]
                lines.append(line.rstrip("\n"))
            yield process, lines
        finally:
            process.kill()


def ours(errors: str) -> list[str]:
    """Its lines but the one that ONNX Runtime writes on a processor whose maker it does not know, such as an
    emulated one."""
    return [line for line in errors.splitlines() if not line.startswith("onnxruntime cpuid_info warning")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_says_where_and_ends_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    keys = tmp_path / "keys"
    keys.write_text("the-key\n", encoding="utf-8")
    bundle = bundle_on_disk(tmp_path / "bundle")
    options = ("--mode", "edge", "--port", "0", "--api-key-file", str(keys), "--model-name", "mine")
    with serve("--bundle", str(bundle), *options) as (process, lines):
        assert lines[:-1] == ["model     mine, mode edge", "access    with one of 1 API keys"]
        found = re.fullmatch(r"ready     (http://127\.0\.0\.1:\d+/v1), Ctrl-C ends it", lines[-1])
        assert found is not None
        body = {
            "model": "mine",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 5,
            "ignore_eos": True,
        }
        answer = httpx.post(
            f"{found[1]}/chat/completions",
            json=body,
            headers={"Authorization": "Bearer the-key"},
            timeout=LIMIT,
            trust_env=False,
        )
        assert answer.json()["usage"]["completion_tokens"] == 5
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out, ours(err)) == (0, "", [])


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `acespec ARGUMENTS` here with ``typed`` on standard input, a fake drafter and a fake cloud."""
    bundle = make_bundle(tmp_path / "bundle", chat_template=TEMPLATE)

    def command(
        arguments: Sequence[str], *, cloud: FakeCloud | None = None, typed: str = ""
    ) -> tuple[int, str, str]:
        class FakeRuntime(EdgeRuntime):
            def __init__(self, folder: Path, address: list[str] | None, **options: Any) -> None:
                link = cloud or FakeCloud(scripted([], 0))
                super().__init__(
                    bundle,
                    (lambda: link) if address else None,
                    draft_length=8,
                    **(options | {"drafter": FakeDrafter(scripted([], 0))}),
                )

        monkeypatch.setattr("acespec_edge.edge.EdgeRuntime", FakeRuntime)
        monkeypatch.setattr(sys, "argv", ["acespec", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return command


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--host", "0.0.0.0"], "host is '0.0.0.0', which others can reach"),
        (["--api-key-file", "no-such-file"], "no-such-file"),
        (["--model-name", " "], "model_name is empty"),
        (["--port", "70000"], "--port"),
        (["--mode", "fast"], "mode is 'fast'"),
        (["--max-requests", "0"], "--max-requests"),
    ],
)
def test_serve_refuses_wrong_usage(run: Run, arguments: list[str], complaint: str) -> None:
    status, out, err = run(["serve", "--bundle", "BUNDLE", "--cloud", "FAKE", "--port", "0", *arguments])
    assert (status, out) == (2, "")
    assert complaint in err and "Traceback" not in err


def test_serve_logs_what_becomes_of_the_link(tmp_path: Path) -> None:
    bundle = bundle_on_disk(tmp_path / "bundle")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        closed = f"ws://127.0.0.1:{listening.getsockname()[1]}/v1/spec"
    options = ["--bundle", str(bundle), "--cloud", closed, "--port", "0", "--offline-after", "0"]
    with serve(*options, "--log-format", "json") as (process, _):
        process.terminate()
        _, said = process.communicate(timeout=LIMIT)
    lines = [json.loads(line) for line in ours(said)]
    [lost] = [line for line in lines if line["logger"] == "acespec.link"]
    assert lost["link"] == "lost" and "cannot reach the cloud" in lost["message"]


def test_serve_without_its_packages_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "acespec_edge.gateway.server", raising=False)
    status, _, err = run(["serve", "--bundle", "BUNDLE", "--cloud", "FAKE"])
    assert status == 2
    assert "uvicorn is not installed: pip install 'acespec-edge[gateway]'" in err


def test_help_lists_both() -> None:
    command = [sys.executable, "-c", "from acespec_edge.cli import main; main()", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=30, env=ENVIRONMENT).stdout
    assert "serve" in shown and "chat" in shown


def prompts(cloud: FakeCloud) -> list[list[int]]:
    return [list(message.prompt) for message in cloud.received if isinstance(message, _core.Open)]


def echo(sequence: Sequence[int]) -> int:
    """Answers "ok" to anything but its own answer: 14, 10, and the end."""
    return {14: 10, 10: EOS}.get(sequence[-1], 14)


def chat(*more: str) -> list[str]:
    return ["chat", "--bundle", "BUNDLE", "--cloud", "FAKE", *more]


def test_chat_through_a_pipe_answers_line_by_line_and_remembers(run: Run) -> None:
    cloud = FakeCloud(echo)
    status, out, err = run(chat("--system", "s"), cloud=cloud, typed="a\n\nb\n")
    assert (status, out, err) == (0, "ok\nok\n", "")
    assert prompts(cloud) == [[18, 0], [18, 0, 14, 10, 1]]


def test_chat_commands_through_a_pipe(run: Run) -> None:
    cloud = FakeCloud(echo)
    typed = "/stats\na\n/reset\nb\n/system s\nc\n/system\nd\n/what\n/stats\n/quit\ne\n"
    status, out, err = run(chat(), cloud=cloud, typed=typed)
    assert (status, out) == (0, "ok\n" * 4)
    assert prompts(cloud) == [[0], [1], [18, 2], [3]]
    assert "acespec: no answer yet" in err
    assert "there is no /what: /reset forgets" in err
    assert "tokens_per_second " in err


def test_a_path_is_no_command(run: Run) -> None:
    cloud = FakeCloud(echo)
    assert run(chat(), cloud=cloud, typed="/a/b c\n")[1] == "ok\n"


def test_chat_through_a_pipe_ends_with_the_first_error(run: Run) -> None:
    status, _, err = run(chat("--reconnect-for", "0"), cloud=FakeCloud(echo, vanish_after=2), typed="a\nb\n")
    assert status == 1
    assert err.startswith("acespec: ") and err.count("\n") == 1


def test_chat_needs_a_template(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acespec_edge.bundle.Bundle.chat_template", None)
    status, _, err = run(chat(), typed="a\n")
    assert status == 2
    assert "has no chat template: use acespec generate" in err


DRIVER = """
import json, sys, time
from pathlib import Path
import acespec_edge.edge as edge
from acespec_edge import cli
from acespec_edge.errors import LinkError
from tests.python.fake_bundle import EOS, make_bundle
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import FakeDrafter

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
bundle = make_bundle(Path(sys.argv[1]), chat_template=TEMPLATE)

def choose(sequence):
    if 25 in sequence[-4000:]:  # a prompt with a z is answered with zs, slowly and without end
        time.sleep(0.02)
        return 25
    return {14: 10, 10: EOS}.get(sequence[-1], 14)

class Runtime(edge.EdgeRuntime):
    def __init__(self, folder, cloud, **options):
        options["draft_length"] = 8
        super().__init__(bundle, lambda: FakeCloud(choose), **(options | {"drafter": FakeDrafter(choose)}))

    def stream(self, prompt, **options):
        print("ASKED", json.dumps([message["content"] for message in prompt]), file=sys.stderr, flush=True)
        if prompt[-1]["content"] == "lost":
            raise LinkError("the cloud is away")
        return super().stream(prompt, **options)

edge.EdgeRuntime = Runtime
sys.argv = ["acespec", "chat", "--bundle", "B", "--cloud", "C"]
cli.main()
"""


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # A shell's background job starts with the signal ignored, and so would its children.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """The command in a terminal of its own. ``shown`` is all that was written so far."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self._master, slave = pty.openpty()
        asked = folder / "asked"
        self._asked = asked.open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(folder / "bundle")],
            stdin=slave,
            stdout=slave,
            stderr=self._asked,
            env={**ENVIRONMENT, "TERM": "xterm", **environment},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str) -> None:
        """Waits until ``text`` is shown, and forgets what was shown up to it."""
        deadline = time.monotonic() + LIMIT
        while text not in self.shown:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self._master], [], [], left)[0], self.shown
            self.shown += os.read(self._master, 65536).decode(errors="replace")
        self.shown = self.shown.partition(text)[2]

    def until_asleep(self) -> None:
        """Waits until the command waits for a key: of a signal that comes earlier readline takes no notice
        until the next key."""
        state = Path(f"/proc/{self.process.pid}/stat")
        wait_until(lambda: state.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "S")

    def asked(self) -> list[Any]:
        """The texts of every conversation that was put to the model."""
        self._asked.seek(0)
        return [json.loads(line.partition(" ")[2]) for line in self._asked if line.startswith("ASKED")]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        self._asked.close()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with contextlib.closing(Terminal(tmp_path)) as terminal:
        yield terminal


PROMPT = "> "
PASTE = "\x1b[200~{}\x1b[201~"


def test_a_terminal_chat(terminal: Terminal) -> None:
    terminal.expect("Ctrl-D ends")
    terminal.expect(PROMPT)
    terminal.type("a\n")
    terminal.expect("ok")
    terminal.expect(PROMPT)
    terminal.type("lost\n")
    terminal.expect("acespec: the cloud is away")
    terminal.expect(PROMPT)
    terminal.type("b\n")
    terminal.expect("ok")
    terminal.expect(PROMPT)
    assert terminal.asked() == [["a"], ["a", "ok", "lost"], ["a", "ok", "b"]]
    terminal.type("\x04")
    assert terminal.process.wait(LIMIT) == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Terminal) -> None:
    terminal.expect(PROMPT)
    terminal.type("z\n")
    terminal.expect("zzz")
    terminal.type("\x03")
    terminal.expect("(stopped)")
    terminal.expect(PROMPT)
    terminal.type("unfinished")
    terminal.expect("unfinished")
    terminal.until_asleep()
    terminal.type("\x03")
    terminal.expect(PROMPT)
    terminal.type("/reset\n")
    terminal.expect(PROMPT)
    terminal.type("a\n")
    terminal.expect("ok")
    terminal.expect(PROMPT)
    assert terminal.asked() == [["z"], ["a"]]
    terminal.type("/quit\n")
    assert terminal.process.wait(LIMIT) == 0


def test_a_stopped_answer_is_remembered_as_far_as_it_was_shown(terminal: Terminal) -> None:
    terminal.expect(PROMPT)
    terminal.type("z\n")
    terminal.expect("zzz")
    terminal.type("\x03")
    terminal.expect(PROMPT)
    terminal.type("lost\n")
    terminal.expect("away")
    question, answer, _ = terminal.asked()[-1]
    assert question == "z" and set(answer) == {"z"}


def test_a_paste_is_one_message(terminal: Terminal) -> None:
    terminal.expect(PROMPT)
    terminal.type(PASTE.format("one\ntwo\nthree") + "\n")
    terminal.expect("ok")
    assert terminal.asked() == [["one\ntwo\nthree"]]


def test_a_paste_is_one_message_where_the_terminal_does_not_mark_it(tmp_path: Path) -> None:
    quiet = tmp_path / "inputrc"
    quiet.write_text("set enable-bracketed-paste off\n", encoding="utf-8")
    with contextlib.closing(Terminal(tmp_path, INPUTRC=str(quiet))) as terminal:
        terminal.expect(PROMPT)
        terminal.type("one\ntwo\nthree\n")
        terminal.expect("ok")
        assert terminal.asked() == [["one\ntwo\nthree"]]
