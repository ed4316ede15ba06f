"""FedProx (Li et al. 2020): the proximal step, its center, and FedAvg where mu is 0."""

import numpy as np
import pytest
import torch
from by_hand import logits, training_data
from helpers import Witness, names_in_state, run_with
from torch.nn import functional

import fedkd_flwr
from fedkd_flwr.config import ConfigError, read_config
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


def test_without_its_term_it_is_fedavg_bit_for_bit(small, tmp_path):
    _, without = witnessed(small, tmp_path / "without", **{"fedprox.mu": 0.0})
    _, fedavg = witnessed(small, tmp_path / "fedavg", strategy="fedavg")
    _, held = witnessed(small, tmp_path / "held", **{"fedprox.mu": 0.1})
    for key, weights in fedavg.items():
        np.testing.assert_array_equal(without[key], weights)
        assert not np.array_equal(held[key], weights)
    np.testing.assert_array_equal(last_model(tmp_path / "without"), last_model(tmp_path / "fedavg"))


def test_the_larger_mu_the_closer_clients_stay_to_the_global_model(small, tmp_path):
    small |= {"num-server-rounds": 1, "local-epochs": 3}
    distances = []
    for mu in (0.0, 0.1, 1.0, 10.0):
        sent, back = witnessed(small, tmp_path / str(mu), **{"fedprox.mu": mu})
        distances.append([np.linalg.norm(back[1, n] - sent[1, n]) for n in (0, 1)])
    assert (np.diff(distances, axis=0) < 0).all()
    assert (np.array(distances[-1]) < 0.5 * np.array(distances[0])).all()


# ---- State ---------------------------------------------------------------------------


def test_two_rounds_equal_one_round_resumed_by_another(small, tmp_path):
    """The global model is all that the server keeps."""
    small |= {"fedprox.mu": 0.5}
    run, whole = tmp_path / "run", tmp_path / "whole"
    fedkd_flwr.run(small, output_dir=whole)
    fedkd_flwr.run(small, output_dir=run, num_server_rounds=1)
    assert names_in_state(run) == {"model/weights"}
    after_one = last_model(run)
    fedkd_flwr.resume(run, num_server_rounds=2)
    np.testing.assert_array_equal(last_model(run), last_model(whole))
    assert not np.array_equal(last_model(run), after_one)


# ---- Settings ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"fedprox.mu": -0.1}, "fedprox.mu = -0.1: it should be greater than or equal to 0"),
        ({"fedprox.mu": float("inf")}, "fedprox.mu = inf"),
        ({"prox.mu": 0.1}, "no key prox.mu; did you mean fedprox.mu"),
        ({"models": "mlp,lenet"}, "fedprox averages parameters and needs one architecture"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(changes, sentence, small):
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_config({**small, **changes})
    assert "\n" not in str(caught.value)


def test_mu_is_a_hundredth_unless_set(small):
    assert read_config(small).settings.mu == 0.01
    assert read_config({**small, "fedprox.mu": 0.0}).settings.mu == 0.0
