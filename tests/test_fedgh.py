"""FedGH (Yi et al. 2023): the server's steps on a head, and clients that go on from it."""

import numpy as np
import pytest
import torch
from helpers import Witness, client_of, reply_with, run_with
from torch.nn import functional

from fedkd_flwr.models.layers import head_of
from strategies.core.plan import RunPlan
from strategies.fedgh import FedGH, FedGHSettings, head_step


@pytest.fixture
def small(small):
    return {**small, "strategy": "fedgh", "fedgh.feature-width": 12}


def torch_step(weight, bias, features, classes, rate):
    weight, bias = (torch.tensor(value, requires_grad=True) for value in (weight, bias))
    logits = torch.tensor(features) @ weight.T + bias
    functional.cross_entropy(logits, torch.tensor(classes)).backward()
    return (weight - rate * weight.grad).detach(), (bias - rate * bias.grad).detach()


def test_a_step_of_the_head_equals_autograd():
    generator = np.random.default_rng(0)
    weight, bias, features = (generator.normal(size=s) for s in ((4, 3), 4, (5, 3)))
    classes = np.array([0, 2, 3, 3, 1])
    found = head_step(weight, bias, features, classes, 0.3)
    for value, expected in zip(
        found, torch_step(weight, bias, features, classes, 0.3), strict=True
    ):
        np.testing.assert_allclose(value, expected, atol=1e-12)


def test_the_server_trains_on_two_clients_for_two_epochs_without_absent_classes():
    plan = RunPlan(num_clients=2, num_classes=3)
    strategy = FedGH(
        plan, FedGHSettings(feature_width=2, server_epochs=2, server_learning_rate=0.5)
    )
    strategy.state = strategy.begin({})
    head = strategy.train_payload(1, 0)
    weight, bias = (head[name].astype(float) for name in ("head-weight", "head-bias"))
    assert np.abs(weight).max() <= 2**-0.5
    means = np.random.default_rng(1).normal(size=(2, 3, 2)).astype(np.float32)
    counts = np.array([[3, 0, 1], [0, 2, 0]], dtype=np.float32)
    replies = {n: reply_with({"class-means": means[n], "class-counts": counts[n]}) for n in (0, 1)}
    strategy.state = strategy.aggregate(1, replies)
    for _ in range(2):
        for n, held in enumerate(([0, 2], [1])):
            stepped = torch_step(weight, bias, means[n][held].astype(float), held, 0.5)
            weight, bias = (value.numpy() for value in stepped)
    np.testing.assert_allclose(strategy.train_payload(2, 1)["head-weight"], weight, atol=1e-6)
    np.testing.assert_allclose(strategy.train_payload(2, 1)["head-bias"], bias, atol=1e-6)


def test_clients_train_from_the_received_head(small, tmp_path):
    """With steps too small to be seen, mixed models end with the head of the server."""
    witness = Witness()
    _, grid = run_with(witness, small, tmp_path / "run", **{"learning-rate": 1e-12})
    first, second = (witness.down[t, "train", 0]["head-weight"] for t in (1, 2))
    assert first.shape == (10, 12)
    assert np.abs(first - second).max() > 1e-4
    for n in range(4):
        client = client_of(small, n, grid.contexts[n])
        np.testing.assert_allclose(head_of(client.model).weight.detach(), second, atol=1e-6)
