"""Losses against formulas written out."""

import math

import pytest
import torch

from fedkd_flwr.training.losses import (
    cross_entropy_to_teacher,
    kl_from_teacher,
    kl_to_teacher,
    squared_distance,
)


def test_kl_by_hand():
    # One sample, two classes, T = 2: the student's probabilities are softmax((0, 2 log 3) / 2)
    # = (1/4, 3/4); the teacher is (1/2, 1/2).
    logits = torch.tensor([[0.0, 2 * math.log(3)]])
    teacher = torch.tensor([[0.5, 0.5]])
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert kl_to_teacher(logits, teacher, 2.0).item() == pytest.approx(expected)
    assert kl_to_teacher(logits, teacher, 2.0, t_squared=True).item() == pytest.approx(4 * expected)
    reverse = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert kl_from_teacher(logits, teacher, 2.0).item() == pytest.approx(reverse)
    cross_entropy = -0.5 * math.log(0.25) - 0.5 * math.log(0.75)
    assert cross_entropy_to_teacher(logits, teacher, 2.0).item() == pytest.approx(cross_entropy)


@pytest.mark.parametrize("divergence", [kl_to_teacher, kl_from_teacher])
def test_kl_is_a_mean_over_samples_and_zero_for_the_teacher_itself(divergence):
    torch.manual_seed(0)
    logits = torch.randn(5, 4)
    teacher = torch.softmax(logits / 3, dim=1)
    assert divergence(logits, teacher, 3.0).item() == pytest.approx(0, abs=1e-6)
    other = torch.softmax(torch.randn(5, 4), dim=1)
    each = [divergence(logits[i : i + 1], other[i : i + 1], 3.0) for i in range(5)]
    whole = divergence(logits, other, 3.0)
    assert whole.item() == pytest.approx(torch.stack(each).mean().item())


@pytest.mark.parametrize("divergence", [kl_to_teacher, kl_from_teacher])
def test_a_teacher_with_zeros_gives_a_finite_loss_and_gradient(divergence):
    logits = torch.tensor([[50.0, -50.0]], requires_grad=True)
    divergence(logits, torch.tensor([[0.0, 1.0]]), 1.0).backward()
    assert torch.isfinite(logits.grad).all()


def test_squared_distance_by_hand():
    predictions = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    target = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    # Distances 0.25 + 0.25 and 0, mean 0.25.
    assert squared_distance(predictions, target).item() == pytest.approx(0.25)
