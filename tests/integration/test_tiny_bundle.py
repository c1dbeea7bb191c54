"""A bundle with a real graph, the checked-in one of two layers, on ONNX Runtime: from the file to the text.

Needs no PyTorch, so it also runs where only the device package is installed.
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from cloud_stub.local import LocalLink
from cloud_stub.service import Service, ServiceOptions
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.clock import steady
from tests.python.engine_kit import VECTORS
from tests.python.fake_bundle import make_bundle
from tests.vectors import make_tiny_model as tiny

pytestmark = pytest.mark.usefixtures("threads_end")

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
TOKENS = 24
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "seed": 11},
}


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    made = make_bundle(tmp_path / "bundle", eos_ids=())
    shutil.copy(VECTORS / "tiny_model.onnx", made.model_file)
    return replace(made, layers=tiny.LAYERS, kv_width=tiny.KV_WIDTH, max_positions=tiny.POSITIONS)


@functools.cache
def _logits(sequence: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """The graph's own, in numpy; of every fifth token another model's, so that drafts are rejected, too."""
    row = tiny.reference(list(sequence))[-1]
    return np.roll(row, 1) if len(sequence) % 5 == 0 else row


def logits(sequence: Sequence[int]) -> npt.NDArray[np.float32]:
    return _logits(tuple(sequence))


def plainly(**options: Any) -> list[int]:
    """What the target writes by itself."""
    sampler, rules = _core.Sampler(tiny.VOCABULARY), _core.SamplingRules(**options)
    sequence = list(PROMPT)
    while len(sequence) < len(PROMPT) + TOKENS:
        sequence.append(sampler.choose(logits(sequence), rules, len(sequence)))
    return sequence[len(PROMPT) :]


def runtime(bundle: Bundle, **options: Any) -> EdgeRuntime:
    verifier = ScriptedVerifier(logits, bundle.vocabulary_table, max_context=256)
    service = Service(verifier, ServiceOptions())
    return EdgeRuntime(bundle, lambda: LocalLink(service), context=128, cache_mb=1, **options)


@pytest.mark.parametrize("sampling", OPTIONS)
@pytest.mark.parametrize("power", ["full", "save"])
def test_the_text_is_the_targets(bundle: Bundle, sampling: str, power: Any) -> None:
    with runtime(bundle, threads=2, power=power, policy="tree") as edge:
        result = edge.generate(PROMPT, max_tokens=TOKENS, **OPTIONS[sampling])
    assert result.token_ids == plainly(**OPTIONS[sampling])
    assert result.stats.accepted_mean > 0


def test_the_drafter_alone_writes_what_its_graph_says(bundle: Bundle) -> None:
    with EdgeRuntime(bundle, mode="edge", context=128, cache_mb=1, threads="auto") as edge:
        text = edge.generate(PROMPT, max_tokens=TOKENS).token_ids
    # Judged by the largest difference from the likeliest token: two sums in another order may swap a tie.
    for number, token in enumerate(text):
        row = tiny.reference([*PROMPT, *text[:number]])[-1]
        assert row[token] > row.max() - 1e-3


@pytest.mark.parametrize("power", ["full", "save"])
def test_an_idle_runtime_uses_no_processor(bundle: Bundle, power: Any) -> None:
    """A thread that spins, or polls, takes the whole second of one core; threads of an operator may go on for
    a moment after a forward."""
    with runtime(bundle, threads=2, power=power) as edge:
        edge.generate(PROMPT, max_tokens=TOKENS)

        def idle() -> float:
            began = time.process_time()
            time.sleep(1.0)
            return time.process_time() - began

        def is_little(seconds: float) -> None:
            assert seconds < 0.1

        steady(idle, is_little)
