"""FedNTD (Lee et al. 2022): not-true distillation from the received model, and its limits."""

import numpy as np
import pytest
import torch
from by_hand import CHANGES, assert_rounds, training_data, witnessed
from by_hand import logits as logits_of
from torch.nn import functional

from fedkd_flwr.clients.fedntd import not_true

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
    assert_rounds(run, small, lambda sent, n: by_hand(sent, *training_data(small, n)))


def test_batches_meet_the_predictions_on_their_own_samples(small, tmp_path):
    """In small batches the first step from the teacher itself has no divergence."""
    small |= {"batch-size": 7, "local-epochs": 1, "num-server-rounds": 1, "learning-rate": 1e-7}
    _, without = witnessed(small, tmp_path / "without", **{"fedntd.beta": 0.0})
    _, held = witnessed(small, tmp_path / "held", **{"fedntd.beta": 100.0})
    losses = [run.clients["train_loss"].to_numpy() for run in (without, held)]
    np.testing.assert_allclose(*losses, atol=1e-4)
