"""The target's hidden states as they are caught: of the right token, along whatever path was accepted."""

from __future__ import annotations

import random

import pytest
import torch

from acespec_edge.errors import UsageError
from acespec_edge.protocol import ROOT, path_to
from cloud_stub.verifiers.hidden_states import HiddenStates
from cloud_stub.verifiers.torch_verifier import TorchVerifier
from tests.cloud.dlite_kit import CLOCK_SIZE, make_clock, make_target
from tests.cloud.test_torch_verifier import SIZE

pytestmark = pytest.mark.usefixtures("one_thread")


@torch.inference_mode()
def states_at(verifier: TorchVerifier, tokens: list[int]) -> torch.Tensor:
    """transformers' own hidden states at the last token, behind the embedding and the first layer."""
    out = verifier.model(torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    return torch.stack([out.hidden_states[layer + 1][0, -1] for layer in (0,)])


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_features_follow_the_accepted_path(kind: str) -> None:
    verifier = make_target(kind)
    verifier.watch([0])
    rng = random.Random(2)
    handle = verifier.open()
    assert handle.features is None
    text = [rng.randrange(SIZE) for _ in range(9)]
    for first in (0, 4):
        handle.prefill(text[first : first + 5][: 4 if first == 0 else 5])
    for _ in range(12):
        assert handle.length == len(text)
        assert handle.features is not None
        torch.testing.assert_close(handle.features, states_at(verifier, text), atol=1e-4, rtol=1e-4)
        tip = rng.randrange(SIZE)
        nodes = rng.randrange(7)
        parents = [rng.randrange(-1, node) if node else ROOT for node in range(nodes)]
        tokens = [rng.randrange(SIZE) for _ in range(nodes)]
        handle.verify(tip, tokens, parents)
        assert handle.features is None, "of a forward that nothing was kept of yet"
        path = path_to(rng.randrange(-1, nodes), parents) if nodes else []
        handle.keep(path)
        text += [tip, *(tokens[node] for node in path)]
    handle.close()
    assert handle.features is None


def test_features_are_one_token_behind_the_tip() -> None:
    """Of a target whose hidden states name their token."""
    verifier = make_clock()
    verifier.watch([0, 2])
    handle = verifier.open()
    handle.prefill([3, 9, 4])
    assert named(handle.features) == 4  # the anchor is what is chosen next
    handle.verify(7, [1, 8, 2], [ROOT, 0, 1])
    handle.keep([0, 1])
    assert named(handle.features) == 8
    handle.verify(5, [], [])
    handle.keep([])
    assert named(handle.features) == 5


def named(features: torch.Tensor | None) -> int:
    assert features is not None and features.shape == (2, CLOCK_SIZE)
    first, last = features.argmax(-1).tolist()
    assert first == last
    return int(first)


def test_only_chosen_layers_are_caught_and_nothing_else_changes() -> None:
    verifier, plain = make_target(), make_target()
    verifier.watch([1])
    verifier.watch([0, 1])
    layers = verifier.model.base_model.layers
    assert [len(layer._forward_hooks) for layer in layers] == [1, 1]
    watched, other = verifier.open(), plain.open()
    assert (watched.prefill([1, 2, 3]) == other.prefill([1, 2, 3])).all()
    assert (watched.verify(4, [5], [ROOT]) == other.verify(4, [5], [ROOT])).all()
    assert other.features is None and watched._states is not None and len(watched._states) == 2


@pytest.mark.parametrize("layers", [[], [2], [-1], [1, 0], [0, 0]])
def test_layers_that_there_are_not_are_refused(layers: list[int]) -> None:
    with pytest.raises(UsageError, match="ascending numbers from 0 to 1"):
        make_target().watch(layers)


def test_hooks_come_off() -> None:
    model = make_target().model
    states = HiddenStates(model, [0, 1])
    model(torch.tensor([[1, 2, 3]]), use_cache=False)
    assert states.take().shape == (2, 1, 3, 32)
    states.remove()
    assert all(not layer._forward_hooks for layer in model.base_model.layers)
