"""Which provider is taken, what is said of the others, and what TensorRT is told."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from acespec_edge import _core
from acespec_edge.errors import EngineError, UsageError
from acespec_edge.ort_library import ort_library
from acespec_edge.providers import best_engine, tensorrt_options
from tests.python.fake_bundle import make_bundle

TINY = Path(__file__).parents[1] / "vectors" / "tiny_model.onnx"


def made_by(*working: str):
    def make(provider: str) -> str:
        if provider not in working:
            raise EngineError(f"no {provider} here")
        return f"engine on {provider}"

    return make


@pytest.mark.parametrize(
    ("working", "taken"),
    [
        (("tensorrt", "cuda", "cpu"), "tensorrt"),
        (("cuda", "cpu"), "cuda"),
        (("cpu",), "cpu"),
    ],
)
def test_the_best_that_works_is_taken_and_the_log_says_why(working, taken, caplog) -> None:
    with caplog.at_level(logging.INFO, logger="acespec.engine"):
        engine, passed = best_engine(("tensorrt", "cuda", "cpu"), made_by(*working), name="Tiny")
    assert engine == f"engine on {taken}"
    better = ("tensorrt", "cuda", "cpu")[: -len(working)]
    assert passed == [f"{provider}: no {provider} here" for provider in better]
    assert len(caplog.records) == 1
    said = caplog.records[0].getMessage()
    assert said.startswith(f"Tiny runs on {taken}")
    assert all(line in said for line in passed)
    assert caplog.records[0].levelno == (logging.WARNING if better else logging.INFO)


def test_when_none_works_every_reason_is_given() -> None:
    with pytest.raises(EngineError, match=r"Tiny runs on none of cuda, cpu: cuda: no cuda.*cpu: no cpu"):
        best_engine(("cuda", "cpu"), made_by(), name="Tiny")


def test_a_runtime_without_gpus_falls_back_to_the_cpu() -> None:
    def make(provider: str) -> _core.OrtEngine:
        return _core.OrtEngine(str(TINY), ort_library(), slots=128, vocabulary=64, provider=provider)

    engine, passed = best_engine(("tensorrt", "cuda", "cpu"), make, name="tiny")
    assert engine.info.provider == "cpu"
    assert [line.partition(":")[0] for line in passed] == ["tensorrt", "cuda"]
    assert all("is not part of this ONNX Runtime" in line for line in passed)


def test_the_profile_covers_every_input_from_one_row_to_the_largest_forward(tmp_path) -> None:
    bundle = replace(make_bundle(tmp_path), layers=1, kv_width=8, windowed=True)
    options = dict(tensorrt_options(bundle, slots=1024, cache=Path("/c")))
    assert options["trt_engine_cache_path"] == options["trt_timing_cache_path"] == "/c"
    assert (options["trt_fp16_enable"], options["trt_engine_cache_enable"]) == ("1", "1")
    assert options["trt_profile_max_shapes"] == (
        "input_ids:1x64,position_ids:1x64,kv_slots:64,attention_bias:64x1024,rows:64,slot_positions:1024,"
        "past_k.0:1024x8,past_v.0:1024x8"
    )
    assert options["trt_profile_min_shapes"].startswith("input_ids:1x1,position_ids:1x1,kv_slots:1,")
    assert "attention_bias:8x256" in options["trt_profile_opt_shapes"]
    small = dict(tensorrt_options(replace(bundle, windowed=False), slots=64, cache=Path("/c")))
    assert "slot_positions" not in small["trt_profile_max_shapes"]
    assert "attention_bias:8x64" in small["trt_profile_opt_shapes"]


def test_options_of_tensorrt_are_for_tensorrt() -> None:
    with pytest.raises(UsageError, match='provider_options are TensorRT\'s, and provider is "cpu"'):
        _core.OrtEngine(
            str(TINY), ort_library(), slots=128, vocabulary=64, provider_options=[("trt_fp16_enable", "1")]
        )
