"""What is minimised, against sums written out."""

from __future__ import annotations

import math

import pytest
import torch

from cloud_stub.dlite.model import Guess
from tests.cloud.dlite_kit import make_head, make_target
from tools.train_dlite import losses
from tools.train_dlite.calibration import calibrate

B, K, V = 2, 3, 8
IDS = torch.tensor([1, 2, 5, 7])
DRAWABLE = 7


def logits(columns: int, seed: int) -> torch.Tensor:
    return 2 * torch.randn(B, K, columns, generator=torch.Generator().manual_seed(seed))


def whole(target: torch.Tensor, draft: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both distributions over all tokens."""
    p = torch.cat([torch.softmax(target[..., :DRAWABLE], -1), torch.zeros(B, K, V - DRAWABLE)], -1)
    q = torch.zeros(B, K, V)
    q[..., ids] = torch.softmax(draft, -1)
    return p, q


@pytest.mark.parametrize("ids", [IDS, torch.arange(V)])
def test_l1_is_over_all_tokens_and_twice_the_total_variation(ids: torch.Tensor) -> None:
    target, draft = logits(V, 1), logits(len(ids), 2)
    p, q = whole(target, draft, ids)
    aim = losses.Aim.of(target, ids, DRAWABLE)
    found = losses.l1(aim, draft)
    torch.testing.assert_close(found, (p - q).abs().sum(-1))
    torch.testing.assert_close(1 - found / 2, torch.minimum(p, q).sum(-1), msg="what is accepted")


def test_the_divergence_is_of_what_the_draft_vocabulary_holds() -> None:
    target, draft = logits(V, 3), logits(len(IDS), 4)
    p, q = whole(target, draft, IDS)
    p = p[..., IDS] / p[..., IDS].sum(-1, keepdim=True)
    terms = torch.where(p > 0, p * (p.clamp_min(1e-30) / q[..., IDS]).log(), 0.0)
    aim = losses.Aim.of(target, IDS, DRAWABLE)
    torch.testing.assert_close(losses.forward_kl(aim.p, draft), terms.sum(-1))


def test_the_likelihood_turns_from_divergence_to_variation() -> None:
    target = logits(V, 5)
    ids = torch.arange(V)
    for draft in (logits(V, 6), target + 0.01):
        p, q = whole(target, draft, ids)
        alpha = torch.minimum(p, q).sum(-1)
        share = torch.exp(-3 * alpha)
        aim = losses.Aim.of(target, ids, DRAWABLE)
        expected = share * losses.forward_kl(aim.p, draft) + (1 - share) * (1 - alpha)
        torch.testing.assert_close(losses.likelihood(aim, draft), expected)


def test_cold_the_variation_has_hardly_a_gradient_and_the_likelihood_has() -> None:
    target = torch.full((1, 1, V), -20.0)
    target[..., 3] = 20.0
    found = {}
    for name in ("l1", "likelihood"):
        draft = torch.zeros(1, 1, V)
        draft[..., 4] = 16.0
        draft.requires_grad_(True)
        getattr(losses, name)(losses.Aim.of(target, torch.arange(V), V), draft).sum().backward()
        assert draft.grad is not None
        found[name] = float(draft.grad.abs().sum())
    assert found["l1"] < 1e-5 < 1.0 < found["likelihood"]


def test_places_weigh_less_the_further_on_and_means_are_weighted() -> None:
    weights = losses.place_weights(3, 4.0)
    torch.testing.assert_close(weights, torch.tensor([1.0, math.exp(-0.25), math.exp(-0.5)]))
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 99.0, 99.0]])
    known = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    w = weights.tolist()
    expected = (5 + 2 * w[1] + 3 * w[2]) / (2 + w[1] + w[2])
    assert float(losses.weighted_mean(values, weights, known)) == pytest.approx(expected)
    assert float(losses.weighted_mean(values, weights, 0 * known)) == 0.0


def test_the_distance_of_features_is_square_near_by_and_straight_far_off() -> None:
    aim = torch.zeros(1, 2, 4)
    hidden = torch.tensor([[[0.5, -0.5, 0.5, -0.5], [3.0, -3.0, 0.0, 0.0]]])
    found = losses.feature_distance(aim, hidden)
    torch.testing.assert_close(found, torch.tensor([[0.125, (2.5 + 2.5) / 4]]))


def test_labels_outside_the_draft_vocabulary_do_not_count() -> None:
    labels = torch.tensor([[1, 5, 6], [-1, 7, 0]])
    places = losses.in_draft(labels, IDS)
    assert places.tolist() == [[0, 2, -1], [-1, 3, -1]]
    draft = logits(len(IDS), 7)
    found = losses.cross_entropy(draft, places)
    log_q = torch.log_softmax(draft, -1)
    assert found[0, 2] == found[1, 0] == found[1, 2] == 0
    torch.testing.assert_close(found[0, :2], -torch.stack([log_q[0, 0, 0], log_q[0, 1, 2]]))


def test_calibration_finds_the_temperature_of_each_place() -> None:
    head = make_head(make_target(), confidence=True)
    generator = torch.Generator().manual_seed(9)
    right = torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0])
    doubts = 3 * torch.randn(4000, 5, generator=generator)
    accepted = torch.sigmoid(doubts / right)
    known = torch.ones_like(doubts)
    known[2000:, 3] = 0
    accepted[2000:, 3] = 1 - accepted[2000:, 3]
    empty = torch.empty(0)
    calibrate(head, [(Guess(empty, empty, doubts[at::2]), accepted[at::2], known[at::2]) for at in (0, 1)])
    torch.testing.assert_close(head.temperature, right)
