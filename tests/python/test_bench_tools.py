"""What the measurements rest on: prompts, the plain loop, comparison, and servers that are stopped again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from acespec_edge.errors import LinkError, UsageError
from tools.bench.acceptance import acceptance
from tools.bench.data import load_prompts, pick
from tools.bench.processes import server
from tools.bench.reference import TIE, Difference, Greedy, first_difference, greedy


def test_our_own_prompts_are_of_three_kinds() -> None:
    prompts = load_prompts()
    assert {kind: len(rows) for kind, rows in prompts.items()} == {"code": 12, "math": 12, "chat": 12}
    rows = [row for kind in prompts.values() for row in kind]
    assert len({row.id for row in rows}) == len({row.text for row in rows}) == 36


def test_picked_prompts_take_the_kinds_in_turn() -> None:
    assert [prompt.kind for prompt in pick(load_prompts(), 5)] == ["code", "math", "chat", "code", "math"]
    with pytest.raises(UsageError, match="prompts is 37: there are 36"):
        pick(load_prompts(), 37)


def test_published_sets_are_read_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "humaneval.jsonl").write_text('{"id": "h", "prompt": "def f():"}\n')
    (tmp_path / "gsm8k_test200.jsonl").write_text('{"id": "g", "prompt": "How many?"}\n')
    (tmp_path / "mtbench80.jsonl").write_text('{"id": "m", "prompt": "x", "turns": ["First.", "Second."]}\n')
    prompts = load_prompts(tmp_path)
    assert [rows[0].text for rows in prompts.values()] == [
        "Complete this Python function:\n\ndef f():",
        "How many?",
        "First.",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ('{"id": "h"', "line 1"), ('{"id": "h"}', "line 1: no text in prompt")],
)
def test_a_bad_set_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "humaneval.jsonl").write_text(content)
    with pytest.raises(UsageError, match=rf"humaneval\.jsonl.*{message}"):
        load_prompts(tmp_path)


def test_the_plain_loop_is_what_transformers_generates() -> None:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=80,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    prompt = [3, 1, 4, 1, 5]
    generated = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)
    run = greedy(model, prompt, 80, [], 20)
    assert run.tokens == generated[0, len(prompt) :].tolist()
    assert len(run.leads) == 20 and min(run.leads) >= 0
    stopped = greedy(model, prompt, 80, [run.tokens[4]], 20)
    assert stopped.tokens == run.tokens[: run.tokens.index(run.tokens[4]) + 1]
    assert max(greedy(model, prompt, 7, [], 20).tokens) < 7


def test_a_difference_is_a_tie_only_where_the_target_hardly_cared() -> None:
    reference = Greedy([5, 6, 7], [1.0, TIE / 2, 1.0])
    assert first_difference(reference, [5, 6, 7]) is None
    tied, wrong = first_difference(reference, [5, 9, 9]), first_difference(reference, [5, 6, 9])
    assert tied == Difference(1, 6, 9, TIE / 2) and tied.tie
    assert wrong == Difference(2, 7, 9, 1.0) and not wrong.tie
    short, long = first_difference(reference, [5]), first_difference(reference, [5, 6, 7, 8])
    assert short is not None and not short.tie and short.got is None
    assert long is not None and not long.tie and long.expected is None


def test_acceptance_inverts_the_mean_of_a_chain() -> None:
    for probability in (0.0, 0.3, 0.88, 1.0):
        mean = sum(probability**power for power in range(1, 9))
        assert acceptance(mean, 8) == pytest.approx(probability, abs=1e-9)


def test_a_server_is_waited_for_and_stopped(tmp_path: Path) -> None:
    script = "import os, time; print('up', os.getpid(), flush=True); time.sleep(60)"
    with server([sys.executable, "-c", script], r"up (\d+)", tmp_path / "log", timeout=30) as found:
        os.kill(int(found), 0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(found), 0)


def test_a_server_that_fails_shows_why(tmp_path: Path) -> None:
    script = "print('no such model'); raise SystemExit(3)"
    with (
        pytest.raises(LinkError, match=r"(?s)ended with status 3.*no such model"),
        server([sys.executable, "-c", script], "up (.*)", tmp_path / "log", timeout=30),
    ):
        pass
