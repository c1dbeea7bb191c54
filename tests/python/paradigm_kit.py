"""What the tests of the paradigms share: runners that answer at once, and small models."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from acespec_edge.errors import LinkError
from tools.bench.paradigms.compare import Comparison
from tools.bench.paradigms.grid import Cell
from tools.bench.paradigms.paradigms import (
    contenders,
)
from tools.bench.paradigms.runs import Field, Question, Run

CELL = Cell(100, 1e6, 1e7)
TEXT = [5, 6, 7, 8]


class FakeRunner:
    """Gives `ids`, token number i after i times `pace` seconds. Fails from call number `fails_at` on."""

    def __init__(self, name: str, log: list[str], ids: Sequence[int] = TEXT, pace: float = 0.1) -> None:
        self.name = name
        self.log = log
        self.ids = list(ids)
        self.pace = pace
        self.fails_at = 1 << 30
        self.calls = 0

    def run(self, question: Question, temperature: float) -> Run:
        self.calls += 1
        if self.calls > self.fails_at:
            raise LinkError("the link broke")
        self.log.append(f"{self.name} {question.id}")
        ids = self.ids[: question.tokens]
        return Run(
            ids, [self.pace * (1 + place) for place in range(len(ids))], 40, 80, rounds=2, accepted=1.5
        )

    def close(self) -> None:
        pass


def field_of(runners: Sequence[FakeRunner], leads: float = 1.0) -> Field:
    calls = iter(range(1 << 20))
    return Field({runner.name: runner for runner in runners}, lambda *_: leads, lambda: 3 * next(calls))


def visited(
    runners: Sequence[FakeRunner], questions: int = 2, repeat: int = 2, leads: float = 1.0
) -> Comparison:
    names = [runner.name for runner in runners]
    asked = [Question(f"q{number}", [1, 2], 4, number) for number in range(questions)]
    comparison = Comparison(asked, contenders(names, 0.0), repeat, lambda doing: None)
    comparison.visit(CELL, field_of(runners, leads))
    return comparison


def small(kind: str, layers: int = 4) -> Any:
    torch.manual_seed(11)
    config, model = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}[kind]
    built: Any = model(
        config(
            vocab_size=72,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
            attn_implementation="sdpa",
        )
    )
    return built.eval()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    return near, far
