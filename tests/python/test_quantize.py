"""Block quantisation: how close, how packed, and what it refuses."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from acespec_edge.errors import UsageError
from acespec_edge.export.ops import CONTRIB
from acespec_edge.export.quantize import quantize_blocks
from acespec_edge.export.rotary import half_order


def weights(rows: int = 40, columns: int = 96) -> NDArray[np.float32]:
    """Heavy-tailed, as trained weights are."""
    return np.random.default_rng(3).standard_t(5, (rows, columns)).astype(np.float32)


def plain_error(matrix: NDArray[np.float32], top: int, block: int) -> float:
    """Mean squared error of rounding over each block's range."""
    blocks = matrix.reshape(-1, block)
    low, high = np.minimum(blocks.min(1), 0)[:, None], np.maximum(blocks.max(1), 0)[:, None]
    scale = (high - low) / top
    zero = np.rint(-low / scale)
    rounded = (np.clip(np.rint(blocks / scale) + zero, 0, top) - zero) * scale
    return float(np.mean((rounded - blocks) ** 2))


def test_the_search_beats_rounding_over_the_range() -> None:
    matrix = weights()
    error = float(np.mean((quantize_blocks(matrix, 4, 32).dequantize() - matrix) ** 2))
    assert error < 0.95 * plain_error(matrix, 15, 32)


def test_eight_bits_are_within_half_a_step() -> None:
    matrix = weights()
    blocks = quantize_blocks(matrix, 8, 32)
    step = np.repeat(blocks.scales, 32, axis=1)
    assert (np.abs(blocks.dequantize() - matrix) <= 1.01 * step).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [32, 48, 96, 100])
def test_the_runtime_reads_the_same_matrix(bits: int, columns: int) -> None:
    """MatMulNBits over the unit matrix gives what dequantize() says, also where rows end within a block."""
    matrix = weights(24, columns)
    blocks = quantize_blocks(matrix, bits, 32)
    tensors = [
        onnx.numpy_helper.from_array(array, name)
        for name, array in (
            ("codes", blocks.packed),
            ("scales", blocks.scales),
            ("zeros", blocks.zero_points),
        )
    ]
    node = onnx.helper.make_node(
        "MatMulNBits", ["x", "codes", "scales", "zeros"], ["y"],
        domain=CONTRIB, K=columns, N=24, bits=bits, block_size=32, accuracy_level=1,
    )  # fmt: skip
    floats = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [node], "product",
        [onnx.helper.make_tensor_value_info("x", floats, ["R", columns])],
        [onnx.helper.make_tensor_value_info("y", floats, ["R", 24])],
        tensors,
    )  # fmt: skip
    domains = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid(CONTRIB, 1)]
    model = onnx.helper.make_model(graph, opset_imports=domains, ir_version=11)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (product,) = session.run(None, {"x": np.eye(columns, dtype=np.float32)})
    assert np.abs(product.T - blocks.dequantize()).max() < 1e-5


def test_blocks_of_one_value_and_of_zeros_survive() -> None:
    matrix = np.zeros((3, 64), np.float32)
    matrix[1], matrix[2] = 0.7, -0.7
    assert np.abs(quantize_blocks(matrix, 4, 32).dequantize() - matrix).max() < 1e-6
    assert np.abs(quantize_blocks(matrix, 8, 32).dequantize() - matrix).max() < 1e-6


def test_bad_requests_name_what_is_wrong() -> None:
    with pytest.raises(UsageError, match="bits: 5"):
        quantize_blocks(weights(), 5, 32)
    with pytest.raises(UsageError, match="block: 24"):
        quantize_blocks(weights(), 4, 24)
    broken = weights()
    broken[7, 9] = np.nan
    with pytest.raises(UsageError, match="not finite"):
        quantize_blocks(broken, 4, 32)


def test_half_order_brings_pairs_apart() -> None:
    rows = np.arange(16, dtype=np.float32)
    assert half_order(rows, 8).tolist() == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    assert half_order(np.stack([rows, rows], axis=1), 8)[:4, 1].tolist() == [0, 2, 4, 6]
