"""Graphs for GPUs, as far as a machine without one can hold them to their promises: the operators that
providers document, and the logits on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.export.build import export_bundle
from acespec_edge.export.quantize import quantize_symmetric
from acespec_edge.export.sources import open_source
from acespec_edge.ort_library import ort_library
from tests.python.small_models import CONFIGS, TOKENS, GraphRunner, save_random_model

KINDS = list(CONFIGS)
QUANTS = ("cuda-fp16", "tensorrt-fp16", "tensorrt-int8", "tensorrt-int4")

# Of the operators that TensorRT's parser documents as supported (10.15, opsets 9 to 24), those that a graph
# may have; all were there in opset 13 but Gelu (20) and DequantizeLinear in blocks (21).
TENSORRT = {
    "Add", "Cast", "Concat", "Cos", "DequantizeLinear", "Div", "Expand", "Gather", "Gelu", "Gemm", "Less",
    "MatMul", "Mul", "ReduceMean", "Reshape", "ScatterND", "Shape", "Sigmoid", "Sin", "Softmax", "Split",
    "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, torch.nn.Module]]:
    torch.set_num_threads(1)
    made = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        made[kind] = (folder, save_random_model(kind, folder))
    return made


@pytest.mark.parametrize(
    ("kind", "quant", "likeness"),
    [*((kind, "cuda-fp16", 0.9999) for kind in KINDS), ("qwen2", "tensorrt-int8", 0.98)],
)
def test_logits_resemble_those_of_transformers(kind, quant, likeness, models, tmp_path) -> None:
    folder, model = models[kind]
    bundle = export_bundle(open_source(folder), tmp_path / "b", quant)
    tokens = [(11 * index + 5) % TOKENS for index in range(40)]
    with torch.no_grad():
        reference = model(torch.tensor([tokens])).logits[0].numpy()
    logits = GraphRunner(bundle).prefill(tokens)
    norms = np.linalg.norm(logits, axis=1) * np.linalg.norm(reference, axis=1)
    assert ((logits * reference).sum(1) / norms).mean() > likeness
    if quant == "cuda-fp16":
        assert np.abs(logits - reference).max() < 0.02 * np.abs(reference).max()


def test_four_bits_are_those_of_the_quantiser(models, tmp_path) -> None:
    """The graph with the rounded weights in float16 says the same, but for what the CPU's kernel rounds of
    activations: packing and blocks are right."""
    folder, _ = models["llama_ungrouped"]  # others reorder heads before they quantise the output's weights
    bundle = export_bundle(open_source(folder), tmp_path / "b", "tensorrt-int4")
    source = open_source(folder)
    read = source.tensor

    def rounded(name: str) -> np.ndarray:
        values = read(name)
        if values.ndim == 1 or name in ("embed", "head"):
            return values
        codes, scales = quantize_symmetric(values, 4, 64)
        scales = scales.astype(np.float16).astype(np.float32)
        wide = np.repeat(scales, 64, axis=1)[:, : values.shape[1]]
        return codes * wide

    source.tensor = rounded
    again = export_bundle(source, tmp_path / "again", "cuda-fp16")
    tokens = [(11 * index + 5) % TOKENS for index in range(40)]
    a, b = GraphRunner(bundle).prefill(tokens), GraphRunner(again).prefill(tokens)
    assert (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b) > 0.995
    graph = onnx.load(bundle / "model.onnx", load_external_data=False).graph
    kinds = {tensor.data_type for tensor in graph.initializer}
    assert TensorProto.INT4 in kinds and TensorProto.UINT8 not in kinds


@pytest.mark.parametrize("quant", QUANTS)
def test_operators_are_among_those_that_tensorrt_documents(quant, models, tmp_path) -> None:
    for kind in ("qwen3", "gemma2", "gemma3", "phi3_longrope", "smollm3"):
        bundle = export_bundle(open_source(models[kind][0]), tmp_path / kind, quant)
        model = onnx.load(bundle / "model.onnx", load_external_data=False)
        onnx.checker.check_model(str(bundle / "model.onnx"), full_check=True)
        assert {entry.domain: entry.version for entry in model.opset_import} == {"": 21}
        assert {node.op_type for node in model.graph.node} <= TENSORRT
        constants = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "ReduceMean":  # its axes must be known when the engine is built
                assert node.input[1] in constants
            if node.op_type == "DequantizeLinear":  # zero points must be zero
                assert len(node.input) == 2


@pytest.mark.parametrize("quant", QUANTS)
def test_the_native_engine_keeps_a_ring_of_float16(quant, models, tmp_path) -> None:
    bundle = Bundle.load(export_bundle(open_source(models["qwen2"][0]), tmp_path / "b", quant), verify=True)
    engine = _core.OrtEngine(str(bundle.model_file), ort_library(), slots=128, vocabulary=bundle.vocabulary)
    assert engine.info.bytes_per_slot == 2 * bundle.layers * bundle.kv_width * bundle.kv_bytes
    places = list(range(12))
    bias = np.where(np.arange(64) <= np.array(places)[:, None], 0, -np.inf).astype(np.float32)
    native = engine.forward(places, places, places, bias, places)
    assert np.abs(native - GraphRunner(bundle.path).prefill(places)).max() < 1e-2


@pytest.mark.parametrize(("bits", "block"), [(4, 64), (4, 16), (8, 48)])
def test_symmetric_codes_are_in_range_and_near(bits, block) -> None:
    matrix = np.random.default_rng(3).standard_t(4, (24, 100)).astype(np.float32)
    matrix[3] = 0
    codes, scales = quantize_symmetric(matrix, bits, block)
    assert scales.shape == (24, -(-100 // block)) and codes.shape == matrix.shape
    top = (1 << (bits - 1)) - 1
    assert np.abs(codes).max() <= top
    back = codes * np.repeat(scales, block, axis=1)[:, :100]
    plain = np.abs(matrix).max(axis=1, keepdims=True) / top  # the step of one scale for a whole row
    assert np.abs(back - matrix).mean() < plain.mean() / 4
    assert (back[3] == 0).all()
