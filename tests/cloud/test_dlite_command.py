"""The commands, one after the other, over a small model on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.python.small_models import save_random_model
from tools.train_dlite.__main__ import main

pytestmark = pytest.mark.usefixtures("one_thread")

MODEL = {
    "aux_layers": [0, 1, 2],
    "layers": 1,
    "heads": 2,
    "head_dim": 16,
    "intermediate": 32,
    "rank": 8,
    "draft_vocabulary": 64,
    "block": 4,
    "confidence": True,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_random_model("llama", tmp_path / "tiny")
    config = {
        "target": str(tmp_path / "tiny"),
        "model": MODEL,
        "generate": {"max_tokens": 12, "batch": 2},
        "collect": {"tokens": 60, "max_tokens": 8, "batch": 4, "dtype": "float32"},
        "cache": {"max_length": 40, "history": 8},
        "train": {"batch": 8, "anchors": 4, "epochs": [1, 1, 1], "history": 8, "warmup_steps": 1},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    rows = [{"id": f"p{n}", "kind": ["code", "chat"][n % 2], "prompt": "abcdef"[n:]} for n in range(5)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def run(folder: Path, name: str, *arguments: str) -> int:
    common = ["--config", str(folder / "config.json"), "--device", "cpu", "--threads", "1"]
    return main([name, *common, *arguments])


def test_from_prompts_to_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, texts = str(folder / "prompts.jsonl"), str(folder / "texts.jsonl")
    cache, head = str(folder / "cache"), str(folder / "head")
    assert run(folder, "generate", "--prompts", prompts, "--out", texts) == 0
    assert run(folder, "cache", "--texts", texts, "--out", cache) == 0
    assert run(folder, "train", "--cache", cache, "--out", head) == 0
    said = capsys.readouterr().out
    assert "5 texts" in said and "losses.png" in said
    assert (folder / "head" / "losses.png").is_file()
    assert run(folder, "eval", "--head", head, "--prompts", prompts, "--tokens", "10", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["target"], found["block"], found["without"], found["history"]) == ("tiny", 4, [], 0)
    assert {kind: row["texts"] for kind, row in found["kinds"].items()} == {"code": 3, "chat": 2}
    assert found["all"]["acceptance_length"] >= 1.0 and len(found["all"]["per_position"]) == 4
    arguments = ["--prompts", prompts, "--tokens", "6", "--limit", "1", "--temperature", "1"]
    assert run(folder, "eval", "--head", head, *arguments, "--without", "rnn", "--without", "depth") == 0
    assert "accepted at each place" in capsys.readouterr().out
    teacher = str(folder / "head" / "teacher")
    assert run(folder, "eval", "--head", teacher, *arguments, "--history", "8") == 0


def test_a_recipe_needs_nothing_but_the_target(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "head"
    changes = [
        "train.epochs=[0,0,1]",
        "train.loss=divergence",
        "train.autocast=true",
        "model.confidence=false",
    ]
    arguments = ["--out", str(out), *(part for change in changes for part in ("--set", change))]
    assert run(folder, "recipe", *arguments) == 0
    said = capsys.readouterr().out
    assert "tokens of answers" in said and "a head for" in said
    files = [out / "model.safetensors", out / "config.json", out / "cache" / "states.f16"]
    made = [path.read_bytes() for path in files]
    (out / "model.safetensors").unlink()
    assert run(folder, "recipe", *arguments) == 0, "it goes on, and there is nothing left to do but to save"
    assert [path.read_bytes() for path in files] == made
    (out / "cache").rename(folder / "cache")
    assert (
        run(folder, "train", "--cache", str(folder / "cache"), "--out", str(folder / "again"), *arguments[2:])
        == 0
    )
    assert (folder / "again" / "model.safetensors").read_bytes() == made[0]


def test_a_recipe_takes_prompts_and_goes_on_from_a_head(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "more.jsonl").write_text(json.dumps({"id": "q", "kind": "math", "prompt": "1 + 2"}) + "\n")
    files = [str(folder / "prompts.jsonl"), str(folder / "more.jsonl")]
    changes = ["--set", "train.epochs=[0,0,1]", "--set", "collect.given=1", "--set", "collect.tokens=100"]
    arguments = [*changes, "--prompts", *files]
    assert run(folder, "recipe", "--out", str(folder / "head"), *arguments) == 0
    texts = (folder / "head" / "cache" / "texts.jsonl").read_text().splitlines()
    names = {json.loads(line)["id"].rpartition("-")[2] for line in texts}
    assert names == {"p0", "p1", "p2", "p3", "p4", "q"}
    start = f"train.start={folder / 'head'}"
    assert run(folder, "recipe", "--out", str(folder / "next"), "--set", start, *arguments) == 0
    capsys.readouterr()
    assert run(folder, "recipe", "--out", "x", "--prompts", "none.jsonl") == 2
    assert "none.jsonl" in capsys.readouterr().err


def test_what_does_not_do_is_said_without_a_trace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = str(folder / "prompts.jsonl")
    for arguments, words in (
        (["cache", "--texts", "none.jsonl", "--out", "x"], "none.jsonl"),
        (["train", "--cache", str(folder), "--out", "x"], "no cache as `cache` writes it"),
        (["eval", "--head", str(folder / "tiny"), "--prompts", prompts], "speculators_model_type is None"),
        (["eval", "--head", "x", "--prompts", prompts, "--tokens", "1"], "tokens is 1: give 2 or more"),
        (["generate", "--prompts", prompts, "--out", "x", "--set", "model.block=0"], "block is 0"),
        (
            ["recipe", "--out", "x", "--set", "train.loss=divergence"],
            "a confidence head learns from the whole",
        ),
        (["recipe", "--out", "x", "--set", "collect.greedy=2"], "collect.greedy is 2: 0 to 1 would be right"),
        (["cache", "--texts", "x", "--out", "x", "--set", "model.aux_layers=[9]"], "0 to 2 are the target's"),
    ):
        assert run(folder, *arguments) == 2
        error = capsys.readouterr().err
        assert words in error and "Traceback" not in error
