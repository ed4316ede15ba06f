"""FML (Shen et al. 2020): the two losses, the average of the memes, local and FedAvg as limits."""

import numpy as np
import pytest
import torch
from helpers import Witness, client_of, run_with
from torch import nn

import fedkd_flwr
from fedkd_flwr.clients.fml import MutualLearning
from fedkd_flwr.clients.shared_models import EnsembleClient, Pair
from fedkd_flwr.config import read_config
from fedkd_flwr.models.vectors import model_vectors
from fedkd_flwr.training.server_models import RunModels


@pytest.fixture
def small(small):
    return {**small, "strategy": "fml", "momentum": 0.0, "cohort": "off"}


def linear(a, b):
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[a], [b]]))
    model.architecture = "linear"
    return model


def softmax(a, b):
    return np.exp([a, b]) / np.exp([a, b]).sum()


def test_each_model_follows_its_own_loss():
    """At x = 1 and label 0 the gradient is w (s - e_0) + (1 - w) (s - the other's s)."""
    pair = Pair(linear(0.3, -0.2), linear(-1.0, 0.5))
    loss = MutualLearning(alpha=0.7, beta=0.4)(pair, torch.ones(1, 1), torch.tensor([0]))
    loss.backward()
    private, shared = softmax(0.3, -0.2), softmax(-1.0, 0.5)
    for model, s, other, weight in (
        (pair.private, private, shared, 0.7),
        (pair.shared, shared, private, 0.4),
    ):
        expected = weight * (s - [1, 0]) + (1 - weight) * (s - other)
        np.testing.assert_allclose(model.weight.grad.flatten(), expected, atol=1e-6)
    divergence = (shared * np.log(shared / private)).sum()
    reverse = (private * np.log(private / shared)).sum()
    by_hand = -0.7 * np.log(private[0]) + 0.3 * divergence
    by_hand += -0.4 * np.log(shared[0]) + 0.6 * reverse
    assert loss.item() == pytest.approx(by_hand, abs=1e-6)


def test_two_clients_memes_are_averaged_by_samples(small, tmp_path):
    changes = {"num-clients": 2, "partition": "dirichlet", "max-samples": 300}
    witness = Witness()
    finished, _ = run_with(witness, small, tmp_path / "run", **changes)
    sizes = finished.clients.query("round == 1")["num_examples"].to_numpy()
    memes = [witness.up[1, "train", n]["weights"] for n in (0, 1)]
    assert sizes[0] != sizes[1]
    for n in (0, 1):
        found = witness.down[2, "train", n]["weights"]
        np.testing.assert_allclose(found, np.average(memes, axis=0, weights=sizes), atol=1e-6)


def test_with_labels_alone_it_is_local_beside_fedavg(small, tmp_path, monkeypatch):
    """Private models of two architectures are trained as by `local`, the memes as by FedAvg."""
    columns = ["round", "partition_id", "accuracy", "loss"]
    ours, fedavg = Witness(), Witness()
    alone, _ = run_with(ours, small, tmp_path / "fml", **{"fml.alpha": 1.0, "fml.beta": 1.0})
    local = fedkd_flwr.run({**small, "strategy": "local"}, output_dir=tmp_path / "local")
    with monkeypatch.context() as same_start:
        same_start.setattr(RunModels, "initial", lambda models, **_: models.initial_shared())
        run_with(fedavg, small, tmp_path / "fedavg", strategy="fedavg", models="mlp")
    np.testing.assert_array_equal(alone.clients[columns], local.clients[columns])
    for key in ((2, "train", n) for n in range(4)):
        np.testing.assert_array_equal(ours.up[key]["weights"], fedavg.up[key]["weights"])
    mutual = fedkd_flwr.run(small, output_dir=tmp_path / "mutual")
    assert not np.array_equal(mutual.clients[columns], local.clients[columns])


@pytest.mark.parametrize("strategy", ["fml", "fedapen", "fedkd", "fedmrl"])
def test_no_clients_two_models_start_equal(strategy, small, tmp_path):
    """Clients draw the shared model that the server sends; one that never trained has it too."""
    witness = Witness()
    one = {**small, "strategy": strategy, "models": "mlp", "num-server-rounds": 1}
    run_with(witness, one, tmp_path / "run")
    shared = witness.down[1, "train", 0]["weights"]
    for initial_weights in ("common", "own"):
        for n in range(2):
            client = client_of({**one, "initial-weights": initial_weights}, partition_id=n)
            private = model_vectors(client.session.new_model())["weights"]
            assert private.shape == shared.shape
            assert np.mean(private == shared) < 0.01
            if isinstance(client, EnsembleClient):
                np.testing.assert_array_equal(model_vectors(client.shared)["weights"], shared)


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [("fml", "of FMLClient takes a Pair"), ("fedrod", "of FedRoDClient takes a Decoupled")],
)
def test_training_one_network_alone_needs_what_is_replaced(strategy, sentence, small):
    client = client_of(small, strategy=strategy, models="mlp")
    with pytest.raises(TypeError, match=f"{sentence}, not a .*: pass one, or `replaced=`"):
        client.train_locally(1)
    client.train_locally(1, replaced=())


@pytest.mark.parametrize("strategy", ["fml", "fedkd"])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"models": "lenet"}, "lenet"),
        ({"models": "lenet,cnn"}, "mlp"),
        ({"models": "lenet", "shared-model": "cnn"}, "cnn"),
    ],
)
def test_the_shared_model_is_the_clients_own_where_there_is_one(strategy, changes, expected):
    flat = {f"{strategy}.{key}" if key == "shared-model" else key: v for key, v in changes.items()}
    configuration = read_config({**flat, "strategy": strategy})
    assert configuration.settings.shared_model == expected
    assert read_config(configuration.flat()).flat() == configuration.flat()
