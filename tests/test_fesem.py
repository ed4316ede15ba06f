"""FeSEM (Xie et al. 2020): nearest centers, their means, and FedAvg where there is one."""

import numpy as np
import pytest
from by_hand import TWO_CLIENTS, trained, training_data, witnessed

from strategies.core.plan import RunPlan
from strategies.core.replies import ClientInfo
from strategies.fesem import FeSEM, FeSEMSettings, first_centers


@pytest.fixture
def small(small):
    return {**small, **TWO_CLIENTS, "strategy": "fesem", "fesem.clusters": 2}


def test_clients_train_from_their_center_and_centers_become_the_means_of_their_clients(
    small, tmp_path
):
    """Three clients and two centers: some two share one, weighed by their samples."""
    small |= {"num-clients": 3, "num-server-rounds": 3, "local-epochs": 2}
    witness, run = witnessed(small, tmp_path / "run")
    data = [training_data(small, n) for n in range(3)]
    sizes = np.array([len(labels) for _, labels in data])
    initial = witness.down[1, "train", 0]["weights"]
    models = [trained(initial, *own, steps=2) for own in data]
    for server_round in (1, 2, 3):
        for n in range(3):
            up = witness.up[server_round, "train", n]["weights"]
            np.testing.assert_allclose(up, models[n], atol=1e-6)
        labels = run.matrices["clusters"][server_round - 1]
        assert set(labels) == {0, 1}
        centers = {
            k: np.average(
                [models[n] for n in range(3) if labels[n] == k], axis=0, weights=sizes[labels == k]
            )
            for k in (0, 1)
        }
        for n in range(3):
            sent = witness.down[server_round, "evaluate", n]["weights"]
            np.testing.assert_allclose(sent, centers[labels[n]], atol=1e-6)
        models = [trained(centers[labels[n]], *data[n], steps=2) for n in range(3)]
        if server_round < 3:
            nearest = [
                min((0, 1), key=lambda k: np.linalg.norm(model - centers[k])) for model in models
            ]
            assert nearest == list(run.matrices["clusters"][server_round])


def test_clients_without_a_center_receive_the_global_mean(small, tmp_path):
    small |= {"num-clients": 3, "fraction-train": 0.67, "num-server-rounds": 1}
    witness, run = witnessed(small, tmp_path / "run")
    (absent,) = np.flatnonzero(run.matrices["clusters"][0] < 0)
    present = [n for n in range(3) if n != absent]
    sizes = [len(training_data(small, n)[1]) for n in present]
    trained_models = [witness.up[1, "train", n]["weights"] for n in present]
    mean = np.average(trained_models, axis=0, weights=sizes)
    sent = witness.down[1, "evaluate", absent]["weights"]
    np.testing.assert_allclose(sent, mean, atol=1e-6)


def test_centers_that_no_client_began_stay_unused():
    strategy = FeSEM(RunPlan(num_clients=4, num_classes=2), FeSEMSettings(clusters=3))
    for n in range(4):
        strategy.members.clients[n] = ClientInfo(n, 100 + n, "mlp", num_examples=9)
    strategy.state = strategy.begin({"weights": np.zeros(2, dtype=np.float32)})
    models = {n: {"weights": np.full(2, n + 9, dtype=np.float32)} for n in (0, 1)}
    strategy.state = strategy.aggregate_models(1, models)
    # It is nearer to the initial model than to any other.
    fresh = {2: {"weights": np.ones(2, dtype=np.float32)}}
    strategy.state = strategy.aggregate_models(2, fresh)
    assert sorted(strategy.state.labels[:2]) == [0, 1]
    assert strategy.state.labels[2] == strategy.state.labels[0]


def test_first_centers_lie_in_different_groups_and_are_no_more_than_the_models():
    models = [np.full(4, place, dtype=np.float32) for place in (0.0, 0.01, 50.0, 50.01, 100.0)]
    for seed in range(5):
        chosen = first_centers(models, 3, seed)
        assert {round(float(models[k][0])) for k in chosen} == {0, 50, 100}
    assert sorted(first_centers(models[:2], 3, 0)) == [0, 1]
