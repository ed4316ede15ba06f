"""HypCluster (Mansour et al. 2020): the choice of hypotheses, and their averages."""

import numpy as np
import pytest
import torch
from by_hand import TWO_CLIENTS, loss_of, trained, training_data, witnessed
from helpers import breaking, client_of, replacing, run_with

from strategies.clusters import moved_centers


@pytest.fixture
def small(small):
    return {**small, **TWO_CLIENTS, "strategy": "hypcluster", "hypcluster.clusters": 2}


def test_clients_train_the_best_hypothesis_and_each_becomes_the_mean_of_its_clients(
    small, tmp_path
):
    # With three clients on two hypotheses, some two share one.
    small |= {"num-clients": 3, "num-server-rounds": 3, "partition": "k-classes", "seed": 1}
    small["classes-per-client"] = 5
    witness, run = witnessed(small, tmp_path / "run")
    data = [training_data(small, n) for n in range(3)]
    sizes = np.array([len(labels) for _, labels in data])
    shared = 0
    for server_round in (1, 2, 3):
        hypotheses = witness.down[server_round, "train", 0]["weights"]
        assert hypotheses.shape[0] == 2 and not np.array_equal(*hypotheses)
        labels = [
            int(np.argmin([loss_of(torch.tensor(h), *own) for h in hypotheses])) for own in data
        ]
        expected = [trained(hypotheses[k], *data[n]) for n, k in enumerate(labels)]
        for n in range(3):
            up = witness.up[server_round, "train", n]
            assert up["cluster"] == labels[n]
            np.testing.assert_allclose(up["weights"], expected[n], atol=1e-6)
        means = hypotheses.copy()
        for k in set(labels):
            members = [n for n in range(3) if labels[n] == k]
            shared += len(members) == 2
            weights = sizes[members]
            means[k] = np.average([expected[n] for n in members], axis=0, weights=weights)
        following = witness.down[server_round, "evaluate", 2]["weights"]
        np.testing.assert_allclose(following, means, atol=1e-6)
        np.testing.assert_array_equal(run.matrices["clusters"][server_round - 1], labels)
    assert shared


def test_a_client_is_evaluated_with_the_hypothesis_of_lowest_training_loss(small, tmp_path):
    witness, run = witnessed(small, tmp_path / "run", **{"num-server-rounds": 1})
    (hypotheses,) = witness.down[1, "evaluate", 0].values()
    for n in (0, 1):
        best = min(hypotheses, key=lambda h: loss_of(torch.tensor(h), *training_data(small, n)))
        fedavg = {**small, "strategy": "fedavg"}
        metrics = client_of(fedavg, n).session.evaluate_model({"weights": best}, 1).metrics
        assert run.clients["loss"][n] == pytest.approx(metrics["own-test-loss"], abs=1e-6)


def test_centers_move_to_weighted_means_and_empty_centers_stay():
    centers = {"weights": np.array([[1.0, 1.0], [5.0, 5.0], [9.0, 9.0]])}
    models = [{"weights": np.array([float(x), 0.0])} for x in (2, 8, 4)]
    moved = moved_centers(centers, models, np.array([0, 0, 2]), np.array([1.0, 2.0, 7.0]))
    np.testing.assert_allclose(moved["weights"], [[6, 0], [5, 5], [4, 0]])
    assert centers["weights"][0, 0] == 1.0


@pytest.mark.parametrize("number", [-1, 2])
def test_an_invalid_hypothesis_number_drops_only_its_sender(number, small, tmp_path):
    lie = replacing(cluster=np.array([number]))
    run, _ = run_with(breaking(lie), small, tmp_path / "run", **{"num-server-rounds": 1})
    failures = run.clients.set_index("partition_id")["failure"]
    assert "is outside 0..1" in failures[1]
    assert failures.isna()[0]
    assert run.matrices["clusters"][0, 1] == -1
