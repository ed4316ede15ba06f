"""FedNTD (Lee et al. 2022): not-true distillation from the received model, and its limits."""

import numpy as np
import pytest
import torch
from by_hand import logits as logits_of
from helpers import breaking, names_in_state, replacing, run_with
from torch.nn import functional
from two_clients import (
    CHANGES,
    assert_same_models,
    returned_weights,
    sizes_of,
    training_data,
    witnessed,
)

import fedkd_flwr
from fedkd_flwr.clients.fedntd import not_true
from fedkd_flwr.config import ConfigError, read_config

BETA, TAU = 0.7, 2.5


@pytest.fixture
def small(small):
    own = {"strategy": "fedntd", "fedntd.beta": BETA, "fedntd.temperature": TAU}
    return {**small, **CHANGES, **own}


def over_others(logits, labels):
    """Return softmax(logits / tau) of the other classes by its definition, sample by sample."""
    rows = []
    for row, label in zip(logits, labels.tolist(), strict=True):
        others = [k for k in range(len(row)) if k != label]
        powers = (row[others] / TAU).exp()
        rows.append(powers / powers.sum())
    return torch.stack(rows)


def by_hand(start, images, labels, steps=3, rate=0.2):
    start = torch.from_numpy(start.copy())
    teacher, weights = over_others(logits_of(start, images), labels), start.clone()
    for _ in range(steps):
        weights.requires_grad_()
        logits = logits_of(weights, images)
        divergence = (teacher * (teacher / over_others(logits, labels)).log()).sum(dim=1).mean()
        loss = functional.cross_entropy(logits, labels) + BETA * TAU**2 * divergence
        (step,) = torch.autograd.grad(loss, weights)
        weights = weights.detach() - rate * step
    return weights.numpy()


def test_the_logit_of_the_label_is_left_out():
    logits = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    expected = [[2.0, 3.0], [4.0, 6.0], [7.0, 8.0]]
    assert not_true(logits, torch.tensor([0, 1, 2])).tolist() == expected


@pytest.mark.parametrize("cohort", ["off", "on"])
def test_clients_distill_from_the_received_model_and_the_server_averages(cohort, small, tmp_path):
    run, _ = witnessed(small, tmp_path / "run", cohort=cohort)
    shares = sizes_of(small) / sizes_of(small).sum()
    back = returned_weights(run)
    for t in (1, 2):
        sent = run.down[t, "train", 0]["weights"]
        ends = [by_hand(sent, *training_data(small, n)) for n in (0, 1)]
        for n in (0, 1):
            np.testing.assert_allclose(back[t, n], ends[n], atol=2e-6)
        evaluated = run.down[t, "evaluate", 0]["weights"]
        np.testing.assert_allclose(evaluated, shares @ ends, atol=2e-6)


def test_batches_meet_the_predictions_on_their_own_samples(small, tmp_path):
    """In small batches the first step from the teacher itself has no divergence."""
    small |= {"batch-size": 7, "local-epochs": 1, "num-server-rounds": 1, "learning-rate": 1e-7}
    _, without = witnessed(small, tmp_path / "without", **{"fedntd.beta": 0.0})
    _, held = witnessed(small, tmp_path / "held", **{"fedntd.beta": 100.0})
    losses = [run.clients["train_loss"].to_numpy() for run in (without, held)]
    np.testing.assert_allclose(*losses, atol=1e-4)


def test_with_beta_0_it_is_fedavg(small, tmp_path):
    small |= {"batch-size": 20, "momentum": 0.9, "learning-rate": 0.02}
    one, _ = witnessed(small, tmp_path / "one", **{"fedntd.beta": 0.0})
    other, _ = witnessed({**small, "strategy": "fedavg"}, tmp_path / "other")
    assert_same_models(one, other, tolerance=1e-7)


def test_two_rounds_equal_one_round_resumed_by_another(small, tmp_path):
    whole = fedkd_flwr.run(small, output_dir=tmp_path / "whole")
    fedkd_flwr.run(small, output_dir=tmp_path / "run", num_server_rounds=1)
    assert names_in_state(tmp_path / "run") == {"model/weights"}
    resumed = fedkd_flwr.resume(tmp_path / "run", num_server_rounds=2)
    assert list(resumed.clients["loss"]) == list(whole.clients["loss"])


def test_a_model_that_is_not_finite_is_refused(small, tmp_path):
    weights = np.full(79510, np.nan, np.float32)
    run, _ = run_with(breaking(replacing(weights=weights)), small, tmp_path / "run")
    assert list(run.rounds["failures"]) == [1, 1]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"fedntd.beta": -0.1}, "fedntd.beta = -0.1: it should be greater than or equal to 0"),
        ({"fedntd.temperature": 0}, "fedntd.temperature = 0: it should be greater than 0"),
        ({"models": "mlp,lenet"}, "fedntd averages parameters and needs one architecture"),
        ({"dp-sgd-noise-multiplier": 1.0}, "fedntd uses training samples outside of plain local"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(changes, sentence, small):
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_config({**small, **changes})
    assert "\n" not in str(caught.value)
