"""SCAFFOLD (Karimireddy et al. 2020): corrected steps, control variates, and FedAvg without."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import (
    CHANGES,
    LAYERS,
    gradient,
    loss_of,
    sizes_of,
    training_data,
    witnessed,
)
from helpers import Witness, breaking, replacing, run_with

from strategies.core.plan import RunPlan
from strategies.core.replies import ClientInfo, Reply
from strategies.scaffold import Scaffold, ScaffoldSettings, counted_steps

NUM_PARAMETERS = sum(int(np.prod(shape)) for shape in LAYERS)


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "scaffold"}


def by_hand(start, images, labels, shift, momentum=0.0):
    """Take three steps along ``gradient + shift``; return the end, mean gradient and mean loss."""
    weights, velocity, gradients, losses = start, np.zeros_like(start), [], []
    for _ in range(3):
        losses.append(float(loss_of(torch.from_numpy(np.array(weights)), images, labels)))
        gradients.append(gradient(weights, images, labels))
        velocity = momentum * velocity + gradients[-1] + shift
        weights = weights - np.float32(0.2) * velocity
    distances = [1 + momentum + momentum**2, 1 + momentum, 1]
    mean_gradient = np.average(gradients, axis=0, weights=distances).astype(np.float32)
    return weights, mean_gradient, np.mean(losses)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_steps_are_corrected_and_control_variates_are_mean_gradients(momentum, small, tmp_path):
    small |= {"momentum": momentum, "num-server-rounds": 3, "scaffold.server-learning-rate": 0.7}
    run, _ = witnessed(small, tmp_path / "run")
    data = [training_data(small, n) for n in (0, 1)]
    shares = sizes_of(small) / sizes_of(small).sum()
    model = run.down[1, "train", 0]["weights"]
    control, own = np.zeros_like(model), np.zeros((2, len(model)), dtype=np.float32)
    for t in (1, 2, 3):
        ends = []
        for n in (0, 1):
            sent, returned = run.down[t, "train", n], run.up[t, "train", n]
            np.testing.assert_allclose(sent["weights"], model, atol=2e-6)
            np.testing.assert_allclose(sent["control"], control, atol=2e-6)
            end, renewed, loss = by_hand(model, *data[n], control - own[n], momentum)
            np.testing.assert_allclose(returned["weights"], end, atol=2e-6)
            np.testing.assert_allclose(returned["control"], renewed, atol=2e-6)
            # What the correction adds to the objective is no loss.
            reported = run.metrics[t, "train", n]["train-loss"]
            assert reported == pytest.approx(loss, abs=1e-5)
            ends.append(end)
            own[n] = renewed
        assert np.abs(control - own[0]).max() > 1e-3
        model = (0.3 * model + 0.7 * shares @ ends).astype(np.float32)
        control = (shares @ own).astype(np.float32)


def test_c_is_the_mean_of_the_last_c_n_of_all_clients(small, tmp_path):
    small |= {"num-clients": 4, "partition": "iid", "fraction-train": 0.5, "num-server-rounds": 4}
    run, _ = witnessed(small, tmp_path / "run")
    last = {}
    for t in (1, 2, 3, 4):
        for n in run.trained(t):
            expected = sum(last.values()) / 4
            np.testing.assert_allclose(run.down[t, "train", n]["control"], expected, atol=1e-6)
        last |= {n: run.up[t, "train", n]["control"] for n in run.trained(t)}


@pytest.mark.parametrize("mixing", ["mean", "median"])
def test_one_huge_control_variate_is_gone_after_the_next_reply(small, tmp_path, mixing):
    small |= {"num-clients": 4, "partition": "iid", "num-server-rounds": 3, "mixing": mixing}

    huge = replacing(control=np.full(NUM_PARAMETERS, 9e7, dtype=np.float32))
    witness = Witness(breaking(huge, only_round=1))
    run_with(witness, small, tmp_path / "run")
    sent = {t: np.linalg.norm(witness.down[t, "train", 0]["control"]) for t in (2, 3)}
    honest = np.linalg.norm(witness.up[2, "train", 0]["control"])
    assert sent[2] < 5 * honest
    assert sent[3] < 2 * honest


def after_a_round(replying, joined, stored, **plan):
    """Return c of four clients, each of whose c_n is its number plus 1; all have equal models."""
    strategy = Scaffold(RunPlan(num_clients=4, num_classes=2, **plan), ScaffoldSettings())
    for n in joined:
        strategy.members.clients[n] = ClientInfo(n, 100 + n, "mlp", num_examples=10 * (n + 1))
    own = {n: np.full(3, n + 1, dtype=np.float32) for n in range(4)}
    begun = strategy.begin({"weights": np.zeros(3, dtype=np.float32)})
    strategy.state = replace(begun, controls={n: own[n] for n in stored})
    weights = begun.model["weights"]
    replies = {n: Reply(n, {"weights": weights, "control": own[n]}, {}) for n in replying}
    return strategy.aggregate(1, replies).control


@pytest.mark.parametrize("mixing", ["median", "trimmed-mean"])
def test_clients_that_have_not_replied_do_not_decide_a_robust_c(mixing):
    control = after_a_round([1], joined=range(4), stored=[], mixing=mixing)
    np.testing.assert_allclose(control, 2 / 4)
    control = after_a_round([1], joined=range(4), stored=[0, 2], mixing=mixing)
    np.testing.assert_allclose(control, 2 * 3 / 4)


def test_clients_that_a_resumed_run_goes_on_without_stay_in_c():
    """The joined ones have 10, 20 and 30 samples, and the absent one counts with 20."""
    control = after_a_round([0, 1, 2], joined=[0, 1, 2], stored=[0, 3])
    np.testing.assert_allclose(control, (10 * 1 + 20 * 2 + 30 * 3 + 20 * 4) / 80)
    control = after_a_round([0, 1], joined=[0, 1, 2], stored=[3], mixing="median")
    np.testing.assert_allclose(control, 2 * 3 / 4)


def test_steps_count_for_the_distance_they_come_to():
    assert counted_steps(7, 0.0) == 7
    assert counted_steps(3, 0.5) == pytest.approx(1.75 + 1.5 + 1)
