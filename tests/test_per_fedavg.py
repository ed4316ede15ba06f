"""Per-FedAvg (Fallah et al. 2020): the first-order step, the adaptation, FedAvg where a is 0."""

import numpy as np
import pytest
import torch
from by_hand import (
    CHANGES,
    assert_rounds,
    assert_same_models,
    gradient,
    training_data,
    witnessed,
)
from helpers import client_of
from torch import nn

from fedkd_flwr.clients.per_fedavg import LossAfterStep
from fedkd_flwr.models.vectors import model_vectors


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "per-fedavg"}


def test_clients_step_along_the_gradient_after_a_step(small, tmp_path):
    """With all samples in a batch, b1 and b2 are the same in another order."""
    run, _ = witnessed(small, tmp_path / "run", **{"per-fedavg.inner-learning-rate": 0.3})

    def end_of(weights, n):
        data = training_data(small, n)
        for _ in range(3):
            stepped = weights - np.float32(0.3) * gradient(weights, *data)
            weights = weights - np.float32(0.2) * gradient(stepped, *data)
        return weights

    assert_rounds(run, small, end_of)


def test_the_gradient_of_the_loss_is_of_first_order_and_keeps_the_batches_apart():
    """A model of two parameters: f(w; b1) and f(w'; b2) by autograd, w' a constant step away."""
    torch.manual_seed(0)
    model = nn.Linear(1, 2, bias=False)
    start = model.weight.detach().clone()
    images, labels = torch.randn(4, 1), torch.tensor([0, 1, 1, 0])
    own, own_labels = torch.randn(3, 1), torch.tensor([1, 1, 0])

    def slope(weight, batch, classes):
        weight = weight.clone().requires_grad_()
        loss = nn.functional.cross_entropy(batch @ weight.T, classes)
        return torch.autograd.grad(loss, weight)[0]

    LossAfterStep(0.7)(model, images, labels, own, own_labels).backward()
    stepped = start - 0.7 * slope(start, own, own_labels)
    torch.testing.assert_close(model.weight.grad, slope(stepped, images, labels))
    assert not torch.allclose(model.weight.grad, slope(start, images, labels), atol=1e-3)


def test_parameters_without_a_gradient_do_not_change():
    """Frozen ones, and those of a layer that the answers do not depend on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    model[1].unused = nn.Linear(2, 2)
    batches = torch.randn(4, 3), torch.tensor([0, 1, 1, 0]), torch.randn(2, 3), torch.tensor([1, 0])
    LossAfterStep(0.7)(model, *batches).backward()
    found = {name for name, value in model.named_parameters() if value.grad is not None}
    assert found == {"1.weight", "1.bias"}
    head = nn.Linear(3, 2)
    head.load_state_dict({name: getattr(model[1], name) for name in ("weight", "bias")})
    images, labels, own, own_labels = batches
    LossAfterStep(0.7)(head, model[0](images), labels, model[0](own), own_labels).backward()
    torch.testing.assert_close(model[1].weight.grad, head.weight.grad)


def test_clients_are_evaluated_after_one_step_unless_the_global_model_is_asked_for(small, tmp_path):
    small |= {"per-fedavg.inner-learning-rate": 0.3, "client-split": "60/0/40"}
    one, adapted = witnessed(small, tmp_path / "adapted")
    other, fixed = witnessed(small, tmp_path / "fixed", **{"per-fedavg.evaluate-on": "global"})
    assert_same_models(one, other)
    assert (adapted.rounds["loss_mean"] < fixed.rounds["loss_mean"]).all()


@pytest.mark.parametrize("batch_size", [16, 512])
def test_an_adaptation_by_an_epoch_takes_a_step_on_each_batch(batch_size, small):
    """The batches are those of an epoch, in any order; each sample is in one."""
    small |= {"batch-size": batch_size, "per-fedavg.adaptation": "epoch"}
    client = client_of({**small, "per-fedavg.inner-learning-rate": 0.3})
    weights = model_vectors(client.model)["weights"].copy()
    batches = list(client.adaptation_batches(1))
    assert len(batches) == -(-client.data.num_train // batch_size)
    seen = torch.cat([images for images, _ in batches]).flatten(1)
    own = client.data.train_images.flatten(1)
    torch.testing.assert_close(seen.sum(0), own.sum(0))
    for images, labels in batches:
        weights = weights - np.float32(0.3) * gradient(weights, images.flatten(1), labels)
    client.evaluated(model_vectors(client.model), 1)
    np.testing.assert_allclose(model_vectors(client.model)["weights"], weights, atol=2e-6)
