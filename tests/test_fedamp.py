"""FedAMP (Huang et al. 2021): the cloud's mixtures, the clients' steps, FedAvg and local models."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import CHANGES, gradient, training_data, witnessed

from strategies.core.plan import RunPlan
from strategies.core.replies import Reply
from strategies.fedamp import FedAMP, FedAMPSettings, attention_weights
from strategies.parameters import gram_matrix, squared_distances

OWN = {"fedamp.attention-step": 0.4, "fedamp.sigma": 2.0, "fedamp.regularization-weight": 0.6}


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "fedamp"}


def test_mixtures_are_a_step_down_the_sum_of_attractions():
    """``u_i = w_i - a/2 * ∂/∂w_i Σ_{j != i} A(||w_i - w_j||²)``, by autograd on two parameters."""
    models = np.array([[0.0, 1.0], [0.5, 0.5], [2.0, -1.0]])
    w = torch.tensor(models, requires_grad=True)
    squares = (w[:, None] - w.detach()[None]).square().sum(dim=2)
    (1 - torch.exp(-squares / 2.0)).sum().backward()
    expected = models - 0.4 / 2 * w.grad.numpy()
    distances = squared_distances(gram_matrix([{"weights": row} for row in models]))
    np.testing.assert_allclose(distances, squares.detach().numpy(), atol=1e-12)
    weights = attention_weights(distances, 0.4, 2.0)
    np.testing.assert_allclose(weights @ models, expected, atol=1e-12)


def test_weights_are_never_negative():
    weights = attention_weights(np.zeros((4, 4)), step=5.0, sigma=1.0)
    np.testing.assert_allclose(weights, (1 - np.eye(4)) / 3)


def test_clients_are_regularized_towards_their_mixtures(small, tmp_path):
    run, finished = witnessed(small, tmp_path / "run", **OWN)
    sent = [run.down[1, "train", n]["weights"] for n in (0, 1)]
    np.testing.assert_array_equal(*sent)
    for t in (1, 2):
        ends = []
        for n in (0, 1):
            np.testing.assert_allclose(run.down[t, "train", n]["weights"], sent[n], atol=2e-6)
            weights = sent[n]
            for _ in range(3):
                pull = np.float32(0.6 / 0.4) * (weights - sent[n])
                slope = gradient(weights, *training_data(small, n))
                weights = weights - np.float32(0.2) * (slope + pull)
            np.testing.assert_allclose(run.up[t, "train", n]["weights"], weights, atol=3e-6)
            ends.append(weights)
        weight = 0.4 / 2 * np.exp(-float(np.square(ends[0] - ends[1]).sum()) / 2)
        mixing = np.array([[1 - weight, weight], [weight, 1 - weight]])
        np.testing.assert_allclose(finished.matrices["attention"][t - 1], mixing, atol=1e-5)
        sent = (mixing @ ends).astype(np.float32)


def test_without_attention_it_is_local(small, tmp_path):
    run, finished = witnessed(small, tmp_path / "run", **{"fedamp.sigma": 1e-4})
    np.testing.assert_array_equal(finished.matrices["attention"], [np.eye(2)] * 2)
    for n in (0, 1):
        np.testing.assert_array_equal(
            run.down[2, "train", n]["weights"], run.up[1, "train", n]["weights"]
        )


def test_what_is_clipped_is_the_way_from_the_mixture():
    """Client 0's own model is far from its mixture, where it started; client 3 went astray."""
    plan = RunPlan(num_clients=4, num_classes=2, update_cap=4.0)
    strategy = FedAMP(plan, FedAMPSettings(attention_step=0.5, sigma=1e6))
    strategy.state = strategy.begin({"weights": np.zeros(2, dtype=np.float32)})
    rows = np.array([[900, 0], [1, 0], [2, 0], [3, 0]], dtype=np.float32)
    state = strategy.aggregate_models(1, {n: {"weights": row} for n, row in enumerate(rows)})
    alike = state.attention.changed(range(4), range(4), np.full((4, 4), 0.25))
    strategy.state = replace(state, attention=alike)
    start = strategy.train_payload(2, 0)["weights"]
    np.testing.assert_allclose(start, [906 / 4, 0])
    steps = [[1, 0], [0, 1], [-1, 0], [0, 100]]
    replies = {
        n: Reply(n, {"weights": start + np.array(step, dtype=np.float32)}, {})
        for n, step in enumerate(steps)
    }
    bounded = strategy.bounded(replies)
    assert all(bounded[n] is replies[n] for n in range(3))
    np.testing.assert_allclose(bounded[3].arrays["weights"], [start[0], 4], rtol=1e-6)


def test_a_client_that_was_absent_is_mixed_with_its_last_model(small, tmp_path):
    small |= {**OWN, "num-clients": 3, "fraction-train": 0.67, "num-server-rounds": 4}
    run, finished = witnessed(small, tmp_path / "run")
    last = {}
    for t in (1, 2, 3, 4):
        for n in run.trained(t):
            if n in last:
                row = finished.matrices["attention"][t - 2][n, list(last)]
                expected = row @ list(last.values())
                np.testing.assert_allclose(run.down[t, "train", n]["weights"], expected, atol=1e-6)
        last |= {n: run.up[t, "train", n]["weights"] for n in run.trained(t)}
    assert set(last) == {0, 1, 2}
