"""Linear layers packed for oneDNN against PyTorch's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from cloud_stub.verifiers.packed_linear import PackedLinear, pack
from cloud_stub.verifiers.torch_verifier import TorchVerifier
from tests.cloud.rig import tiny_vocabulary
from tests.cloud.test_torch_verifier import PADDED, SIZE, make_model

SHAPES = [(13, 7), (96, 64), (1000, 576), (256, 1536)]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def linear(out: int, inputs: int, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(out)
    return nn.Linear(inputs, out, bias=bias)


@pytest.mark.parametrize(("out", "inputs"), SHAPES)
@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_linear_layer(out: int, inputs: int, bias: bool) -> None:
    plain = linear(out, inputs, bias=bias)
    x = torch.randn(2, 3, inputs)
    packed = PackedLinear(plain, keep_weight=False)(x)
    assert packed.shape == (2, 3, out)
    torch.testing.assert_close(packed, plain(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("out", "inputs"), SHAPES)
def test_a_rows_result_does_not_depend_on_the_rows_beside_it(out: int, inputs: int) -> None:
    packed = PackedLinear(linear(out, inputs), keep_weight=False)
    x = torch.randn(130, inputs)
    whole = packed(x)
    for rows in (1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 65):
        assert torch.equal(packed(x[:rows]), whole[:rows]), rows
        assert torch.equal(packed(x[-rows:]), whole[-rows:]), rows


def test_no_rows_give_no_rows() -> None:
    assert PackedLinear(linear(13, 7), keep_weight=False)(torch.zeros(0, 7)).shape == (0, 13)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_packed_model_gives_the_logits_of_the_plain_one(family: str) -> None:
    plain, packed = make_model(family), make_model(family)
    pack(packed)
    assert sum(type(module) is nn.Linear for module in packed.modules()) == 0
    rows = [
        TorchVerifier(model, tiny_vocabulary(SIZE), name=family).open().prefill(list(range(1, 9)))
        for model in (plain, packed)
    ]
    torch.testing.assert_close(torch.from_numpy(rows[1]), torch.from_numpy(rows[0]), rtol=1e-4, atol=1e-4)


def test_the_output_layer_keeps_its_matrix_and_no_other_does() -> None:
    model: Any = make_model("llama")
    head = model.get_output_embeddings().weight
    pack(model)
    assert model.get_output_embeddings().weight is head
    assert head.shape[0] == PADDED
    kept = [
        module for module in model.modules() if isinstance(module, PackedLinear) and module.weight is not None
    ]
    assert kept == [model.get_output_embeddings()]


def test_a_model_in_sixteen_bits_is_left_as_it_is() -> None:
    model: Any = make_model("llama")
    model.to(torch.bfloat16)
    pack(model)
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
