"""FedProx (Li et al. 2020): the proximal step, its center, and FedAvg where mu is 0."""

import numpy as np
import pytest
import torch
from by_hand import logits, training_data
from helpers import Witness, run_with
from torch.nn import functional

from fedkd_flwr.runs import read_checkpoint


@pytest.fixture
def small(small):
    """Two clients of unequal sizes, so that the weights of the average show."""
    changes = {"partition": "dirichlet", "num-clients": 2, "max-samples": 300}
    return {**small, **changes, "strategy": "fedprox", "models": "mlp"}


def witnessed(small, folder, **changes):
    """Run; return each client's weights as sent and as sent back, by round and client."""
    witness = Witness()
    run_with(witness, small, folder, **changes)
    sent = {(t, n): a["weights"] for (t, phase, n), a in witness.down.items() if phase == "train"}
    back = {key: witness.up[key[0], "train", key[1]]["weights"] for key in sent}
    return sent, back


def last_model(folder):
    """Return the weights of the global model after a run's last round."""
    return read_checkpoint(folder).state["model/weights"]


def by_hand(center, images, labels, mu, rate, steps):
    """Take steps ``w - rate * (grad F(w) + mu * (w - center))`` on all samples at once."""
    center = torch.from_numpy(center.copy())
    weights = center.clone()
    for _ in range(steps):
        weights.requires_grad_()
        loss = functional.cross_entropy(logits(weights, images), labels)
        (gradient,) = torch.autograd.grad(loss, weights)
        weights = weights.detach()
        weights = weights - rate * (gradient + mu * (weights - center))
    return weights.numpy()


# ---- The update ----------------------------------------------------------------------


def test_clients_take_proximal_steps_and_the_server_averages_by_samples(small, tmp_path):
    """In round 2 the center is the model of round 1, not the one that the run began with."""
    small |= {"local-epochs": 3, "batch-size": 512, "momentum": 0.0, "learning-rate": 0.2}
    sent, back = witnessed(small, tmp_path / "run", **{"fedprox.mu": 1.5})
    data = [training_data(small, n) for n in (0, 1)]
    sizes = np.array([len(labels) for _, labels in data])
    assert sizes[0] != sizes[1]
    for server_round in (1, 2):
        center = sent[server_round, 0]
        np.testing.assert_array_equal(center, sent[server_round, 1])
        expected = [by_hand(center, *data[n], mu=1.5, rate=0.2, steps=3) for n in (0, 1)]
        for n in (0, 1):
            np.testing.assert_allclose(back[server_round, n], expected[n], atol=1e-6)
            plain = by_hand(center, *data[n], mu=0.0, rate=0.2, steps=3)
            assert np.abs(plain - expected[n]).max() > 1e-3
        average = np.average(expected, axis=0, weights=sizes)
        following = sent[2, 0] if server_round == 1 else last_model(tmp_path / "run")
        np.testing.assert_allclose(following, average, atol=1e-6)
    assert np.abs(sent[2, 0] - sent[1, 0]).max() > 1e-3


def test_the_larger_mu_the_closer_clients_stay_to_the_global_model(small, tmp_path):
    small |= {"num-server-rounds": 1, "local-epochs": 3}
    distances = []
    for mu in (0.0, 0.1, 1.0, 10.0):
        sent, back = witnessed(small, tmp_path / str(mu), **{"fedprox.mu": mu})
        distances.append([np.linalg.norm(back[1, n] - sent[1, n]) for n in (0, 1)])
    assert (np.diff(distances, axis=0) < 0).all()
    assert (np.array(distances[-1]) < 0.5 * np.array(distances[0])).all()
