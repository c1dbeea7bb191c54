"""The head: its parts, its alignment with the text, and that nothing of it grows with the context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from acespec_edge import _core
from acespec_edge.errors import UsageError
from cloud_stub.dlite.backbone import Backbone
from cloud_stub.dlite.config import HeadConfig
from cloud_stub.dlite.head_runtime import HeadRuntime
from cloud_stub.dlite.model import DLiteHead, History
from cloud_stub.dlite.rnn import GatedRnn
from cloud_stub.verifiers.torch_verifier import TorchVerifier
from tests.cloud.dlite_kit import make_head, make_target, shape
from tests.cloud.test_torch_verifier import PADDED, SIZE

pytestmark = pytest.mark.usefixtures("one_thread")

GREEDY = _core.SamplingRules()
B, L, K, H = 3, 2, 5, 32


@pytest.fixture(scope="module")
def target() -> TorchVerifier:
    return make_target()


def inputs(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(B, L, H, generator=generator) * torch.tensor([1.0, 300.0])[None, :, None]
    tokens = torch.randint(0, SIZE, (B, 1 + K), generator=generator)
    return states, tokens[:, 0], tokens[:, 1:]


@pytest.mark.parametrize("backbone", ["full", "injected"])
def test_an_untrained_head_is_its_parts(target: TorchVerifier, backbone: str) -> None:
    """Depth embeddings and the recurrence's way up are zero: features are norms, and places are the
    backbone's, behind the target's own norm and matrix.
    """
    head = make_head(target, trained=False, backbone=backbone)
    states, anchors, following = inputs()
    normed = torch.nn.functional.rms_norm(states, (H,), eps=head.config.rms_eps)
    torch.testing.assert_close(head.features(states), normed)
    model = target.model
    hidden = head.backbone(normed, model.get_input_embeddings()(anchors))
    expected = model.get_output_embeddings()(model.base_model.norm(hidden))
    torch.testing.assert_close(head(states, anchors, following).logits, expected, atol=1e-4, rtol=1e-4)
    assert head(states, anchors, following).doubt is None


@pytest.mark.parametrize("backbone", ["full", "injected"])
def test_the_first_places_alone_are_those_of_a_head_with_a_shorter_block(
    target: TorchVerifier, backbone: str
) -> None:
    head = make_head(target, backbone=backbone, confidence=True)
    short = make_head(target, backbone=backbone, confidence=True, block=2)
    short.load_state_dict({**head.state_dict(), "temperature": head.temperature[:2]})
    states, anchors, following = inputs()
    found, expected = head(states, anchors, following[:, :2]), short(states, anchors, following[:, :2])
    assert found.logits.shape[1] == 2
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.doubt, expected.doubt)
    torch.testing.assert_close(found.hidden @ target.model.get_output_embeddings().weight.T, found.logits)


@pytest.mark.parametrize("backbone", ["full", "injected"])
def test_the_backbone_is_attention_over_what_it_should_see(backbone: str) -> None:
    """Against attention written out, one query at a time."""
    torch.manual_seed(1)
    config = shape(backbone=backbone, layers=1, heads=1, head_dim=8)
    module = Backbone(config, H)
    torch.nn.init.normal_(module.placeholder)
    features, anchor = torch.randn(1, L, H), torch.randn(1, H)
    (layer,) = module.layers
    queries = torch.cat([anchor[0][None], module.placeholder.expand(K, H)])
    x = queries if backbone == "injected" else torch.cat([features[0], queries])
    sources = torch.cat([features[0], layer.attn_norm(queries)])
    if backbone == "full":
        sources = layer.attn_norm(x)
    keys = [turn(layer.key(row), place) for place, row in enumerate(sources)]
    outs = []
    for place in range(L + 1, L + 1 + K):
        row = x[place - len(sources) + len(x)]
        query = turn(layer.query(layer.attn_norm(row)), place)
        weights = torch.softmax(torch.stack([query @ key for key in keys]) / 8**0.5, dim=0)
        row = row + layer.out((weights[:, None] * layer.value(sources)).sum(0))
        normed = layer.mlp_norm(row)
        outs.append(row + layer.down(functional.silu(layer.gate(normed)) * layer.up(normed)))
    torch.testing.assert_close(module(features, anchor)[0], torch.stack(outs), atol=1e-4, rtol=1e-4)


def turn(x: torch.Tensor, place: int) -> torch.Tensor:
    half = len(x) // 2
    angles = place * 10_000.0 ** -(torch.arange(half) / half)
    low, high = x[:half], x[half:]
    return torch.cat([low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()])


def test_the_recurrence_is_the_published_one() -> None:
    torch.manual_seed(2)
    rnn = GatedRnn(H, 4)
    hidden, before, state = torch.randn(1, H), torch.randn(1, H), torch.randn(1, 4)
    _, same = rnn.step(state, before, hidden)
    assert torch.equal(same, hidden), "nothing is added before training"
    torch.nn.init.normal_(rnn.up.weight)
    following, out = rnn.step(state, before, hidden)
    z = torch.cat([state, before @ rnn.down.weight.T, hidden], dim=1)
    gate = torch.sigmoid(z @ rnn.gate.weight.T + rnn.gate.bias)
    new = torch.tanh(z @ rnn.candidate.weight.T + rnn.candidate.bias)
    torch.testing.assert_close(following, gate * state + (1 - gate) * new)
    inner = torch.tanh(z @ rnn.inner.weight.T + rnn.inner.bias)
    torch.testing.assert_close(out, hidden + inner @ rnn.up.weight.T)


@pytest.mark.parametrize("backbone", ["full", "injected"])
def test_every_input_matters_where_it_should(target: TorchVerifier, backbone: str) -> None:
    """A place sees the features, the anchor and the tokens before it, and never its own or a later one."""
    head = make_head(target, backbone=backbone)
    states, anchors, following = inputs()
    base = head(states, anchors, following).logits
    assert (head(states + torch.randn_like(states), anchors, following).logits != base).any(-1).all()
    assert (head(states, (anchors + 1) % SIZE, following).logits != base).any(-1).all()
    for place in range(K):
        other = following.clone()
        other[:, place] = (other[:, place] + 1) % SIZE
        differs = (head(states, anchors, other).logits != base).any(-1)
        assert not differs[:, : place + 1].any() and differs[:, place + 1 :].all()


@pytest.mark.parametrize("changes", [{}, {"rnn": False}, {"draft_vocabulary": 16}, {"confidence": True}])
def test_block_by_block_is_the_head_along_its_own_tokens(target: TorchVerifier, changes: dict) -> None:
    head = make_head(target, **changes)
    runtime = HeadRuntime(head, SIZE)
    states, anchors, _ = inputs(3)
    for row in range(B):
        tokens = runtime.block(states[row], int(anchors[row]), 9, GREEDY, K)
        following = torch.tensor([tokens])
        guess = head(states[row : row + 1], anchors[row : row + 1], following)
        logits = torch.full((K, PADDED), float("-inf"))
        logits[:, head.draft_ids] = guess.logits[0]
        assert logits[:, :SIZE].argmax(-1).tolist() == tokens and len(tokens) == K
        assert runtime.block(states[row], int(anchors[row]), 9, GREEDY, 2) == tokens[:2]


def test_a_sampled_block_uses_the_requests_noise(target: TorchVerifier) -> None:
    head = make_head(target)
    runtime, sampler = HeadRuntime(head, SIZE), _core.Sampler(SIZE)
    states, anchors, _ = inputs(4)
    rules = _core.SamplingRules(temperature=2.0, seed=8)
    tokens = runtime.block(states[0], int(anchors[0]), 40, rules, K)
    logits = head(states[:1], anchors[:1], torch.tensor([tokens])).logits[0].detach().numpy()
    assert tokens == [sampler.choose(row, rules, 40 + place) for place, row in enumerate(logits)]
    assert tokens != runtime.block(states[0], int(anchors[0]), 41, rules, K)


def test_a_block_ends_where_its_own_estimate_falls_too_low(target: TorchVerifier) -> None:
    head = make_head(target, confidence=True)
    head.temperature.copy_(torch.tensor([0.5, 1.0, 2.0, 3.0, 4.0]))
    runtime = HeadRuntime(head, SIZE)
    states, anchors, _ = inputs(5)
    whole = runtime.block(states[0], int(anchors[0]), 9, GREEDY, K)
    doubt = head(states[:1], anchors[:1], torch.tensor([whole])).doubt
    assert doubt is not None
    survival = torch.sigmoid(doubt[0]).cumprod(0).tolist()
    for place, bound in enumerate(survival):
        assert runtime.block(states[0], int(anchors[0]), 9, GREEDY, K, bound + 1e-6) == whole[:place]


def test_a_head_without_sense_proposes_nothing(target: TorchVerifier) -> None:
    head = make_head(target)
    with torch.no_grad():
        head.norm.weight.fill_(float("nan"))
    states, anchors, _ = inputs()
    assert HeadRuntime(head, SIZE).block(states[0], int(anchors[0]), 9, GREEDY, K) == []


@pytest.mark.parametrize("backbone", ["full", "injected"])
def test_a_window_of_the_past_counts_only_where_it_exists(target: TorchVerifier, backbone: str) -> None:
    head = make_head(target, backbone=backbone)
    states, anchors, following = inputs(6)
    base = head(states, anchors, following).logits
    window = torch.randn(B, 4, H)
    known = torch.tensor([[False] * 4, [False, False, True, True], [True] * 4])
    with_past = head(states, anchors, following, History(window, known)).logits
    torch.testing.assert_close(with_past[0], base[0], atol=1e-4, rtol=1e-4)
    assert (with_past[1:] != base[1:]).any(-1).all()
    torch.testing.assert_close(
        with_past[1], head(states, anchors, following, History(window[:, 2:], known[:, 2:])).logits[1]
    )


class Sizes(TorchDispatchMode):
    """Counts operations, and the numbers that they produce."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations += 1
        self.numbers += sum(part.numel() for part in _tensors(out))
        return out


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


@pytest.mark.parametrize("backbone", ["full", "injected"])
def test_a_block_costs_the_same_behind_any_context(backbone: str) -> None:
    target = long_target()
    head = make_head(target, backbone=backbone)
    target.watch(head.config.aux_layers)
    runtime = HeadRuntime(head, SIZE)
    costs = []
    for context in (128, 8192):
        handle = target.open()
        for first in range(0, context, 1024):
            handle.prefill([(7 * n) % SIZE for n in range(first, min(context, first + 1024))])
        assert handle.features is not None and handle.features.shape == (L, H)
        assert handle.features.untyped_storage().nbytes() == 4 * L * H, "no more of the context is held"
        with FlopCounterMode(display=False) as flops, Sizes() as sizes:
            assert len(runtime.propose(handle, 1, context + 1, GREEDY, K, 0.0)) == K
        costs.append((flops.get_total_flops(), sizes.operations, sizes.numbers))
        handle.close()
    assert costs[0] == costs[1] and costs[0][0] > 0


def test_every_place_is_projected_once(target: TorchVerifier) -> None:
    head = make_head(target)
    states, anchors, _ = inputs()
    projected = []
    head.norm.register_forward_hook(lambda module, args, out: projected.append(out[..., 0].numel()))
    HeadRuntime(head, SIZE).block(states[0], int(anchors[0]), 9, GREEDY, K)
    assert sum(projected) == K


def long_target() -> TorchVerifier:
    """One with room for a long context."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.cloud.rig import tiny_vocabulary
    from tests.cloud.test_torch_verifier import SHAPE

    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(**(SHAPE | {"max_position_embeddings": 9000}))).eval()
    return TorchVerifier(model, tiny_vocabulary(SIZE), name="long")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block": 0}, "block is 0: 1 to 64"),
        ({"layers": 999}, "layers is 999"),
        ({"backbone": "both"}, "backbone is 'both': full or injected"),
        ({"head_dim": 7}, "head_dim is 7: an even number"),
        ({"aux_layers": (2, 1)}, r"aux_layers is \[2, 1\]: ascending"),
        ({"aux_layers": ()}, "aux_layers"),
        ({"rope_theta": float("nan")}, "rope_theta"),
    ],
)
def test_shapes_that_cannot_be_are_named(changes: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        shape(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rnk": 4}, "model.rnk is not known"),
        ({"rank": "4"}, "model.rank is '4': int would be right"),
        ({"rnn": 1}, "model.rnn is 1: bool"),
        ({"rms_eps": True}, "model.rms_eps is True: float"),
        ({"aux_layers": [0, 1.5]}, "model.aux_layers"),
        ({"layers": None}, "model.layers is None"),
    ],
)
def test_fields_of_another_kind_are_named(changes: dict, words: str) -> None:
    from tests.cloud.dlite_kit import SHAPE

    with pytest.raises(UsageError, match=words):
        HeadConfig.from_fields(SHAPE | changes)
    with pytest.raises(UsageError, match=r"model\.rank is missing"):
        HeadConfig.from_fields({name: value for name, value in SHAPE.items() if name != "rank"})


def test_a_head_needs_ids_for_its_whole_draft_vocabulary(target: TorchVerifier) -> None:
    weight = target.model.get_input_embeddings().weight
    with pytest.raises(UsageError, match="draft_vocabulary is 16, and 3 ids"):
        DLiteHead(shape(draft_vocabulary=16), weight, weight, torch.tensor([1, 2, 3]))
