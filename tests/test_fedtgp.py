"""FedTGP (Zhang et al. 2024): the margin, the contrastive loss, and what the server trains."""

import numpy as np
import pytest
import torch
from helpers import reply_with

from fedkd_flwr.config import read_config
from fedkd_flwr.training.server_models import RunModels, margin_loss
from strategies.core.plan import RunPlan
from strategies.fedtgp import FedTGP, FedTGPSettings, adaptive_margin


@pytest.fixture
def small(small):
    return {**small, "strategy": "fedtgp", "fedtgp.feature-width": 12, "fedtgp.server-epochs": 5}


def server_of(small, settings):
    """Return a server of two clients and three classes."""
    models = RunModels(read_config(small).run)
    return FedTGP(RunPlan(num_clients=2, num_classes=3), settings, server_models=models)


def prototypes_by_hand(generator):
    hidden = generator["vectors"] @ generator["hidden"].T + generator["hidden-bias"]
    return np.maximum(hidden, 0) @ generator["output"].T + generator["output-bias"]


def loss_by_hand(prototypes, sent, classes, margin):
    losses = []
    for prototype, c in zip(sent, classes, strict=True):
        near = np.exp(-np.linalg.norm(prototype - prototypes, axis=1))
        right = near[c] * np.exp(-margin)
        losses.append(-np.log(right / (right + near.sum() - near[c])))
    return np.mean(losses)


def test_the_margin_is_the_largest_distance_to_the_nearest_present_class():
    means = np.array([[[0.0, 0], [3, 4], [90, 90], [6, 11]], [[0, 0], [9, 12], [90, 90], [6, 11]]])
    counts = np.array([[5, 1, 0, 1], [1, 9, 0, 1]])
    # Centers (0, 0), (6, 8) and (6, 11): nearest at 10, 3 and 3; the farthest pair is at 12.5.
    assert adaptive_margin(means, counts, 100.0) == pytest.approx(10)
    assert adaptive_margin(means, counts, 4.0) == 4
    assert adaptive_margin(means[:, :1], counts[:, :1], 100.0) == 0


def test_the_loss_by_hand():
    generator = np.random.default_rng(0)
    prototypes, sent = generator.normal(size=(4, 3)), generator.normal(size=(2, 3))
    found = margin_loss(torch.tensor(prototypes), torch.tensor(sent), torch.tensor([3, 1]), 0.7)
    assert found.item() == pytest.approx(loss_by_hand(prototypes, sent, [3, 1], 0.7))


def test_the_server_takes_a_gradient_step_for_each_of_two_clients(small):
    """Against differences of the loss by hand in every entry of the generator."""
    settings = FedTGPSettings(feature_width=2, server_epochs=1, server_learning_rate=0.1)
    strategy = server_of(small, settings)
    strategy.state = strategy.begin({})
    generator = {name: array.astype(float) for name, array in strategy.state.generator.items()}
    means = np.random.default_rng(1).normal(size=(2, 3, 2)).astype(np.float32)
    counts = np.array([[2, 0, 1], [0, 3, 1]], dtype=np.float32)
    margin = adaptive_margin(np.where(counts[..., None] > 0, means, 0), counts, 100.0)
    for n, held in enumerate(([0, 2], [1, 2])):
        gradient = {name: np.zeros_like(array) for name, array in generator.items()}
        for name, array in generator.items():
            for place in np.ndindex(array.shape):
                ends = []
                for step in (1e-6, -1e-6):
                    moved = {**generator, name: array.copy()}
                    moved[name][place] += step
                    shifted = prototypes_by_hand(moved)
                    ends.append(loss_by_hand(shifted, means[n][held], held, margin))
                gradient[name][place] = (ends[0] - ends[1]) / 2e-6
        generator = {name: array - 0.1 * gradient[name] for name, array in generator.items()}
    replies = {n: reply_with({"class-means": means[n], "class-counts": counts[n]}) for n in (0, 1)}
    strategy.state = strategy.aggregate(1, replies)
    for name, array in generator.items():
        np.testing.assert_allclose(strategy.state.generator[name], array, atol=1e-5)
    sent = strategy.train_payload(2, 0)["prototypes"]
    np.testing.assert_allclose(sent, prototypes_by_hand(generator), atol=1e-5)
