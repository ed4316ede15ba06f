"""LG-FedAvg (Liang et al. 2020): heads are averaged, bodies stay, alone it is local."""

import numpy as np
import pytest
import torch
from helpers import Witness, client_of, run_with

from fedkd_flwr.models.layers import head_of


@pytest.fixture
def small(small):
    return {**small, "strategy": "lg-fedavg", "lg-fedavg.feature-width": 12, "cohort": "off"}


def test_two_clients_of_unequal_sizes_get_the_mean_head_by_samples(small, tmp_path):
    changes = {"num-clients": 2, "partition": "dirichlet", "max-samples": 300}
    witness = Witness()
    finished, _ = run_with(witness, small, tmp_path / "run", **changes)
    sizes = finished.clients.query("round == 1").set_index("partition_id")["num_examples"]
    assert sizes[0] != sizes[1]
    assert witness.down[1, "train", 0] == {}
    for name in ("head-weight", "head-bias"):
        sent = [witness.up[1, "train", n][name] for n in (0, 1)]
        mean = (sizes[0] * sent[0] + sizes[1] * sent[1]) / (sizes[0] + sizes[1])
        for n in (0, 1):
            np.testing.assert_allclose(witness.down[1, "evaluate", n][name], mean, atol=1e-6)
            np.testing.assert_allclose(witness.down[2, "train", n][name], mean, atol=1e-6)


def test_bodies_stay_and_are_trained_from_round_to_round(small, tmp_path):
    """A full-batch step from the mean head and the own body of round 1, by autograd."""
    small |= {"batch-size": 512, "momentum": 0.0, "client-split": "75/0/25", "models": "mlp"}
    witness = Witness()
    _, grid = run_with(witness, small, tmp_path / "one", **{"num-server-rounds": 1})
    client = client_of(small, 1, grid.contexts[1])
    model, data = client.model, client.data
    with torch.no_grad():
        head_of(model).weight.copy_(torch.tensor(witness.down[1, "evaluate", 1]["head-weight"]))
        head_of(model).bias.copy_(torch.tensor(witness.down[1, "evaluate", 1]["head-bias"]))
    logits = model.train()(data.train_images)
    torch.nn.functional.cross_entropy(logits, data.train_labels).backward()
    expected = head_of(model).weight - 0.05 * head_of(model).weight.grad
    second = Witness()
    run_with(second, small, tmp_path / "two")
    found = second.up[2, "train", 1]["head-weight"]
    np.testing.assert_allclose(found, expected.detach(), atol=1e-5)
