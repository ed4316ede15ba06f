"""FedProx (Li et al. 2020): the proximal step, its center, and FedAvg where mu is 0."""

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from torch.nn import functional

import fedkd_flwr
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.client_app import build_client
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.engines.grid import InProcessGrid
from fedkd_flwr.runs import read_checkpoint
from fedkd_flwr.server_app import serve
from strategies.fedprox import FedProx

LAYERS = ((100, 784), (100,), (10, 100), (10,))
"""Shapes of the mlp's parameters on digits, in their order."""


@pytest.fixture
def small(small):
    """Two clients of unequal sizes, so that the weights of the average show."""
    changes = {"partition": "dirichlet", "num-clients": 2, "max-samples": 300}
    return {**small, **changes, "strategy": "fedprox", "models": "mlp"}


class Recorder:
    """Serves as the real app does; keeps the weights sent to each client and back, by round."""

    def __init__(self):
        self.sent, self.returned, self.evaluated = {}, {}, []

    def __call__(self, message, context):
        reply = client_app(message, context)
        kind = message.metadata.message_type
        if kind == "train":
            server_round = message.content.config_records["config"]["server-round"]
            key = server_round, context.node_config["partition-id"]
            self.sent[key] = weights_in(message)
            self.returned[key] = weights_in(reply)
        elif kind == "evaluate":
            self.evaluated.append(weights_in(message))
        return reply

    @property
    def last_model(self):
        """The global model after the last round."""
        return self.evaluated[-1]


def weights_in(message):
    return message.content.array_records["arrays"]["weights"].numpy()


def recorded(small, folder, **changes):
    configuration = read_config({**small, "output-dir": str(folder), **changes})
    recorder = Recorder()
    serve(InProcessGrid(recorder, 2, configuration.flat()), configuration)
    return recorder


def training_data(small, partition_id):
    flat = read_config(small).flat()
    data = build_client(Context(1, 1, {"partition-id": partition_id}, RecordDict(), flat)).data
    return data.train_images.flatten(1), data.train_labels


def logits(weights, images):
    sizes = [int(np.prod(shape)) for shape in LAYERS]
    parts = zip(torch.split(weights, sizes), LAYERS, strict=True)
    w1, b1, w2, b2 = (part.view(shape) for part, shape in parts)
    return torch.relu(images @ w1.T + b1) @ w2.T + b2


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
    run = recorded(small, tmp_path / "run", **{"fedprox.mu": 1.5})
    data = [training_data(small, n) for n in (0, 1)]
    sizes = np.array([len(labels) for _, labels in data])
    assert sizes[0] != sizes[1]
    for server_round in (1, 2):
        center = run.sent[server_round, 0]
        np.testing.assert_array_equal(center, run.sent[server_round, 1])
        expected = [by_hand(center, *data[n], mu=1.5, rate=0.2, steps=3) for n in (0, 1)]
        for n in (0, 1):
            np.testing.assert_allclose(run.returned[server_round, n], expected[n], atol=1e-6)
            plain = by_hand(center, *data[n], mu=0.0, rate=0.2, steps=3)
            assert np.abs(plain - expected[n]).max() > 1e-3
        average = np.average(expected, axis=0, weights=sizes)
        following = run.sent[2, 0] if server_round == 1 else run.last_model
        np.testing.assert_allclose(following, average, atol=1e-6)
    assert np.abs(run.sent[2, 0] - run.sent[1, 0]).max() > 1e-3


def test_without_its_term_it_is_fedavg_bit_for_bit(small, tmp_path):
    without = recorded(small, tmp_path / "without", **{"fedprox.mu": 0.0})
    fedavg = recorded(small, tmp_path / "fedavg", strategy="fedavg")
    held = recorded(small, tmp_path / "held", **{"fedprox.mu": 0.1})
    for key, weights in fedavg.returned.items():
        np.testing.assert_array_equal(without.returned[key], weights)
        assert not np.array_equal(held.returned[key], weights)
    np.testing.assert_array_equal(without.last_model, fedavg.last_model)


def test_the_larger_mu_the_closer_clients_stay_to_the_global_model(small, tmp_path):
    small |= {"num-server-rounds": 1, "local-epochs": 3}
    distances = []
    for mu in (0.0, 0.1, 1.0, 10.0):
        run = recorded(small, tmp_path / str(mu), **{"fedprox.mu": mu})
        distances.append([np.linalg.norm(run.returned[1, n] - run.sent[1, n]) for n in (0, 1)])
    assert (np.diff(distances, axis=0) < 0).all()
    assert (np.array(distances[-1]) < 0.5 * np.array(distances[0])).all()


# ---- State ---------------------------------------------------------------------------


def test_two_rounds_at_once_end_with_the_model_of_one_and_another(small, tmp_path):
    """The global model is all that the server keeps."""
    small |= {"fedprox.mu": 0.5}
    whole = fedkd_flwr.run(small, output_dir=tmp_path / "whole")
    run = fedkd_flwr.run(small, output_dir=tmp_path / "run", num_server_rounds=1)
    after_one = read_checkpoint(run.path).state
    assert FedProx.kept == ("model",)
    assert set(after_one) == {"model/weights"}
    fedkd_flwr.resume(tmp_path / "run", num_server_rounds=2)
    after_two, at_once = (read_checkpoint(tmp_path / name).state for name in ("run", "whole"))
    np.testing.assert_array_equal(after_two["model/weights"], at_once["model/weights"])
    assert not np.array_equal(after_one["model/weights"], after_two["model/weights"])
    assert list(whole.rounds["round"]) == [1, 2]


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
