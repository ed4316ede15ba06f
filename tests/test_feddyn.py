"""FedDyn (Acar et al. 2021): dynamic terms on the clients, drift on the server, and its limits."""

import numpy as np
import pytest
from by_hand import (
    CHANGES,
    assert_same_models,
    gradient,
    returned_weights,
    training_data,
    witnessed,
)

from fedkd_flwr.runs import read_checkpoint
from strategies.core.plan import RunPlan
from strategies.core.replies import ClientInfo
from strategies.feddyn import FedDyn, FedDynSettings

ALPHA, RATE = np.float32(0.4), np.float32(0.2)


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "feddyn", "feddyn.alpha": 0.4}


@pytest.mark.parametrize("cohort", ["off", "on"])
def test_three_rounds_by_hand(cohort, small, tmp_path):
    """g_k, h and the server's model by Algorithm 1; both clients count alike."""
    run, _ = witnessed(small, tmp_path / "run", **{"cohort": cohort, "num-server-rounds": 3})
    data = [training_data(small, n) for n in (0, 1)]
    server = run.down[1, "train", 0]["weights"]
    own, drift = np.zeros((2, len(server)), dtype=np.float32), np.zeros_like(server)
    back = returned_weights(run)
    for t in (1, 2, 3):
        np.testing.assert_allclose(run.down[t, "train", 1]["weights"], server, atol=5e-6)
        ends = []
        for n in (0, 1):
            weights = server
            for _ in range(3):
                step = gradient(weights, *data[n]) - own[n] + ALPHA * (weights - server)
                weights = weights - RATE * step
            np.testing.assert_allclose(back[t, n], weights, atol=5e-6)
            own[n] -= ALPHA * (weights - server)
            ends.append(weights)
        drift = drift - ALPHA / 2 * sum(end - server for end in ends)
        server = (ends[0] + ends[1]) / 2 - drift / ALPHA
        np.testing.assert_allclose(run.down[t, "evaluate", 0]["weights"], server, atol=5e-6)


def test_h_is_the_mean_of_all_g_k_where_half_take_part(small, tmp_path):
    """Both change by the same drifts, so that they stay equal."""
    small |= {"num-clients": 4, "partition": "iid", "fraction-train": 0.5, "num-server-rounds": 4}
    run, _ = witnessed(small, tmp_path / "run")
    state, own = read_checkpoint(tmp_path / "run").state, {}
    for t in (1, 2, 3, 4):
        for n in run.trained(t):
            moved = run.up[t, "train", n]["weights"] - run.down[t, "train", n]["weights"]
            own[n] = own.get(n, 0) - ALPHA * moved
    np.testing.assert_allclose(state["drift/weights"], sum(own.values()) / 4, atol=1e-6)


def test_clients_that_a_resumed_run_goes_on_without_count_in_m():
    strategy = FedDyn(RunPlan(num_clients=4, num_classes=2), FedDynSettings(alpha=0.4))
    strategy.state = strategy.begin({"weights": np.zeros(3, dtype=np.float32)})
    strategy.members.clients[1] = ClientInfo(1, 101, "mlp", num_examples=9)
    state = strategy.aggregate_models(1, {1: {"weights": np.ones(3, dtype=np.float32)}})
    np.testing.assert_allclose(state.drift["weights"], -ALPHA / 4)


def test_clients_of_the_first_round_are_fedprox_bit_for_bit(small, tmp_path):
    small |= {"batch-size": 16, "momentum": 0.9, "learning-rate": 0.05, "num-server-rounds": 1}
    dynamic, _ = witnessed(small, tmp_path / "feddyn")
    proximal, _ = witnessed(
        {**small, "strategy": "fedprox", "fedprox.mu": 0.4}, tmp_path / "fedprox"
    )
    assert_same_models(dynamic, proximal)
