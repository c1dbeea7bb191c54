"""The command line: what is printed where, and with which status it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from acespec_edge import _core, cli
from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from tests.clock import LIMIT, wait_until
from tests.python.fake_bundle import ENTRIES, EOS, make_bundle
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import FakeDrafter, mixing, scripted

Run = Callable[..., tuple[int, str, str]]
TARGET = scripted([ENTRIES.index(letter) for letter in "hello there, edge."], 2)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `acespec ARGUMENTS` here, with a fake drafter, and a fake cloud behind every address."""
    bundle = make_bundle(tmp_path / "bundle", chat_template="{{ messages[-1].content }}")

    def command(arguments: Sequence[str], *, cloud: FakeCloud | None = None) -> tuple[int, str, str]:
        class FakeRuntime(EdgeRuntime):
            def __init__(self, folder: Path, address: list[str] | None, **options: Any) -> None:
                link = cloud or FakeCloud(TARGET)
                opened = bundle if folder == Path("BUNDLE") else Bundle.load(folder)
                wire = (lambda: link) if address == ["FAKE"] else address
                # Beside a target that takes no time nothing is worth drafting.
                if options.get("draft_length") is None:
                    options["draft_length"] = 8
                super().__init__(opened, wire, **(options | {"drafter": FakeDrafter(TARGET)}))

        monkeypatch.setattr("acespec_edge.edge.EdgeRuntime", FakeRuntime)
        monkeypatch.setattr(sys, "argv", ["acespec", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return command


def generate(*more: str) -> list[str]:
    return ["generate", "--bundle", "BUNDLE", "--cloud", "FAKE", *more, "hi"]


def test_a_cloud_writes_no_escapes_to_the_terminal(run: Run) -> None:
    refusal = _core.Fault(code=_core.FaultCode.busy, message="full \x1b[2J\x9b2J\r\x07now", retry_after_ms=1)
    status, _, err = run(generate(), cloud=FakeCloud(TARGET, alter=lambda _: refusal))
    assert status == 1 and "full \\x1b[2J\\x9b2J\\r\\x07now" in err
    assert all(character.isprintable() or character == "\n" for character in err)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--cloud", "wss://a/#cost=0", "--cloud", "wss://b/"], "cost is 0 for wss://a/"),
        (["--cloud", "wss://a/", "--cloud", "wss://a/"], "cloud names wss://a/ twice"),
        (["--cloud", "local", "--cloud", "wss://a/"], "'local' and other addresses"),
        (["--cloud", "wss://127.0.0.1:1/", "--client-cert", "a.pem"], "give --client-cert and --client-key"),
    ],
)
def test_how_to_name_clouds(run: Run, more: list[str], words: str) -> None:
    status, _, err = run(["generate", "hi", "--bundle", "BUNDLE", *more])
    assert status == 2 and words in err


def test_text_goes_to_standard_output_and_nothing_else(run: Run) -> None:
    assert run(generate("--max-tokens", "18")) == (0, "hello there, edge.\n", "")


def test_stop_strings_and_modes(run: Run) -> None:
    assert run(generate("--stop", "zz", "--stop", ", edge"))[1] == "hello there\n"
    assert run(generate("--mode", "cloud", "--max-tokens", "5"))[1] == "hello\n"
    assert (
        run(["generate", "--bundle", "BUNDLE", "--mode", "edge", "--max-tokens", "5", "hi"])[1] == "hello\n"
    )


def test_json_is_one_object(run: Run) -> None:
    status, out, err = run(generate("--json", "--max-tokens", "5", "--seed", "9"))
    answer = json.loads(out)
    assert (status, err, out.count("\n")) == (0, "", 1)
    assert list(answer) == ["text", "token_ids", "finish_reason", "usage", "logprobs", "origins", "stats"]
    assert answer["logprobs"] is None
    assert (answer["text"], answer["finish_reason"], answer["stats"]["seed"]) == ("hello", "length", 9)
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}


def test_stats_are_a_contract_and_go_to_standard_error(run: Run) -> None:
    _, out, err = run(generate("--stats", "--max-tokens", "5"))
    assert out == "hello\n"
    for name in (
        *("rounds", "accepted_mean", "hit_rate", "bytes_up", "bytes_down", "max_draft_bytes", "seed"),
        *(
            "max_verdict_bytes",
            "rtt_ms",
            "verify_ms",
            "draft_ms",
            "recover_us",
            "ttft_ms",
            "tokens_per_second",
        ),
    ):
        assert f"{name} " in err


def test_rules_reach_the_cloud(run: Run, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}', encoding="utf-8")
    cloud = FakeCloud(TARGET)
    biased = ("--logit-bias", "3=-1.5", "--logit-bias", "4=2", "--ban", "5", "--allow", "3", "--allow", "7")
    penalties = ("--repetition-penalty", "1.5", "--presence-penalty", "0.5", "--frequency-penalty", "-0.25")
    ends = ("--min-tokens", "2", "--max-tokens", "5", "--json-schema", f"@{schema}", "--mode", "cloud")
    assert run(generate(*biased, *penalties, *ends, "--seed", "1"), cloud=cloud)[0] == 0
    (opened,) = (message for message in cloud.received if isinstance(message, _core.Open))
    assert opened.rules == _core.SamplingRules(
        seed=1,
        logit_bias=[(3, -1.5), (4, 2.0)],
        banned=[5],
        allowed=[3, 7],
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=-0.25,
        min_tokens=2,
    )
    assert (opened.grammar_kind, opened.grammar) == (_core.Grammar.json_schema, '{"type": "integer"}')
    assert list(opened.stop_ids) == [EOS]
    other = FakeCloud(TARGET)
    run(
        generate("--ignore-eos", "--sampling", "residual", "--max-tokens", "1", "--mode", "cloud"),
        cloud=other,
    )
    (opened,) = (message for message in other.received if isinstance(message, _core.Open))
    assert (opened.mode, list(opened.stop_ids)) == (_core.Mode.residual, [])


def test_prompt_from_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("ok"))
    assert (
        run(["generate", "--bundle", "BUNDLE", "--cloud", "FAKE", "--max-tokens", "5", "-"])[1] == "hello\n"
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (generate("--max-tokens", "0"), "max_tokens is 0"),
        (generate("--temperature", "-1"), "temperature"),
        (generate("--mode", "fast"), "mode is 'fast'"),
        (generate("--sampling", "fast"), "sampling is 'fast'"),
        (generate("--logit-bias", "3"), "--logit-bias is '3'"),
        (generate("--logit-bias", "64=1"), "logit_bias names 64"),
        (generate("--ban", "64"), "banned_tokens names 64"),
        (generate("--min-tokens", "999"), "min_tokens is 999"),
        (generate("--logprobs", "2"), "--logprobs needs --json"),
        (generate("--json-schema", "@no-such-file"), "no-such-file"),
        (generate("--json-schema", "{}", "--regex", "a"), "exclude each other"),
        (generate("--ignore-eos", "--regex", "a"), "ignore_eos is set"),
        (generate("--system", "s", "--raw"), "--system and --raw"),
        (["generate", "--bundle", "BUNDLE", "hi"], "needs a cloud"),
        (["generate", "--bundle", "BUNDLE", "--cloud", "ftp://x", "hi"], "cloud is 'ftp://x'"),
        (["generate", "--bundle", "no-such-folder", "--cloud", "FAKE", "hi"], "no-such-folder"),
        (["generate", "--cloud", "FAKE", "hi"], "--bundle"),
        (generate("--max-tokens", "many"), "--max-tokens"),
        (["draw"], "draw"),
    ],
)
def test_wrong_usage_is_status_2_and_names_it(run: Run, arguments: list[str], complaint: str) -> None:
    status, out, err = run(arguments)
    assert (status, out) == (2, "")
    assert complaint in err
    assert "Traceback" not in err


def test_a_lost_cloud_is_status_1_after_what_came(run: Run) -> None:
    strict = generate("--draft-length", "4", "--reconnect-for", "0")
    status, out, err = run(strict, cloud=FakeCloud(TARGET, vanish_after=3))
    assert status == 1
    assert out == "hello \n"
    assert err.startswith("acespec: ") and err.count("\n") == 1
    status, out, err = run([*strict, "--json"], cloud=FakeCloud(TARGET, vanish_after=3))
    assert (status, json.loads(out)["text"], json.loads(out)["finish_reason"]) == (1, "hello ", "error")


def test_what_becomes_of_the_link_is_told_on_standard_error(run: Run) -> None:
    alone = generate("--draft-length", "4", "--offline-after", "0", "--max-tokens", "18")
    status, out, err = run(alone, cloud=FakeCloud(TARGET, vanish_after=3))
    assert (status, out) == (0, "hello there, edge.\n")
    lost, offline = err.splitlines()
    assert lost == "acespec: the fake link is lost; waiting for another connection"
    assert offline.startswith("acespec: no cloud for ") and offline.endswith("goes on alone")


def test_debug_shows_where(run: Run) -> None:
    status, _, err = run(["--debug", *generate()], cloud=FakeCloud(TARGET, vanish_after=3))
    assert status == 1
    assert "Traceback" in err and "acespec: " in err


def test_an_interrupt_is_status_130_and_ends_cleanly(run: Run) -> None:
    cloud = FakeCloud(mixing(1), silent_after=3)

    def interrupt() -> None:
        wait_until(lambda: len(cloud.drafts) == 2)  # the second one is never answered
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt, daemon=True)
    # A shell's background job starts with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupter.start()
    began = time.monotonic()
    try:
        status, out, err = run(generate(), cloud=cloud)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (status, err) == (130, "")
    assert out.endswith("\n")
    assert time.monotonic() - began < LIMIT
    assert cloud.closed


def acespec(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from acespec_edge.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_help_lists_the_commands() -> None:
    shown = acespec("--help")
    assert shown.returncode == 0
    for command in ("generate", "export", "models", "wan"):
        assert command in shown.stdout


def test_version() -> None:
    assert acespec("--version").stdout.startswith("acespec 0.")


def test_help_needs_nothing_heavy() -> None:
    heavy = ["numpy", "onnx", "onnxruntime", "tokenizers", "torch", "jinja2", "websockets", "huggingface_hub"]
    code = f"import sys, acespec_edge.cli; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert shown.stdout.strip() == "[]", shown.stderr
