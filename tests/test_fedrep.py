"""FedRep (Collins et al. 2021): a head is fitted to the shared body, then the body to the head."""

import numpy as np
import pytest
import torch
from by_hand import (
    BODY,
    CHANGES,
    assert_rounds,
    gradient,
    loss_on_test_data,
    training_data,
    witnessed,
)
from helpers import client_of
from torch import nn

from fedkd_flwr.models.layers import head_of
from fedkd_flwr.models.vectors import model_vectors


class OneLayer(nn.Module):
    """Softmax regression, which is all head."""

    def __init__(self, shape, classes):
        super().__init__()
        self.head = nn.Linear(int(np.prod(shape)), classes)

    def forward(self, images):
        return self.head(images.flatten(1))


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "fedrep", "fedrep.head-epochs": 2}


@pytest.mark.parametrize("cohort", ["off", "on"])
def test_heads_take_their_steps_before_the_bodies_and_keep_their_momentum(cohort, small, tmp_path):
    small |= {"momentum": 0.9, "learning-rate": 0.05, "cohort": cohort}
    run, finished = witnessed(small, tmp_path / "run")
    heads = [model_vectors(client_of(small, n).model)["weights"][BODY:] for n in (0, 1)]
    speeds = [np.zeros_like(head) for head in heads]

    def end_of(body, n):
        data, weights = training_data(small, n), np.concatenate([body, heads[n]])
        for _ in range(2):
            speeds[n] = np.float32(0.9) * speeds[n] + gradient(weights, *data)[BODY:]
            weights[BODY:] -= np.float32(0.05) * speeds[n]
        speed = np.zeros_like(body)  # the body was replaced
        for _ in range(3):
            speed = np.float32(0.9) * speed + gradient(weights, *data)[:BODY]
            weights[:BODY] -= np.float32(0.05) * speed
        heads[n] = weights[BODY:]
        return weights[:BODY]

    assert_rounds(run, small, end_of)
    rows = finished.clients.set_index(["round", "partition_id"])
    assert (rows["gradient_steps"] == 2 + 3).all()
    for n in (0, 1):
        body = run.down[2, "evaluate", n]["weights"]
        expected = loss_on_test_data(np.concatenate([body, heads[n]]), small, n)
        assert rows["loss"][2, n] == pytest.approx(expected, abs=1e-5)


def test_training_the_head_is_regression_on_features_and_leaves_the_body_alone(small):
    """Not even weight decay moves the frozen body."""
    client = client_of({**small, "weight-decay": 0.1})
    model, data = client.model, client.data
    before, head = model_vectors(model, slice(None, -1))["weights"].copy(), nn.Linear(100, 10)
    head.load_state_dict(head_of(model).state_dict())
    entered = []
    hook = head_of(model).register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    model(data.train_images)
    hook.remove()
    features = entered[0].detach()
    optimizer = torch.optim.SGD(head.parameters(), 0.2, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(features), data.train_labels).backward()
        optimizer.step()
    client.train_head(1)
    torch.testing.assert_close(head_of(model).weight, head.weight)
    torch.testing.assert_close(head_of(model).bias, head.bias)
    np.testing.assert_array_equal(model_vectors(model, slice(None, -1))["weights"], before)


def test_a_model_of_one_layer_is_trained_as_under_local_and_nothing_is_sent(small, tmp_path):
    small |= {"models": "tests.test_fedrep:OneLayer", "fedrep.head-epochs": 3, "momentum": 0.9}
    run, finished = witnessed(small, tmp_path / "run")
    _, local = witnessed(small, tmp_path / "local", strategy="local")
    assert all(not arrays for arrays in (*run.up.values(), *run.down.values()))
    np.testing.assert_allclose(finished.clients["loss"], local.clients["loss"], rtol=1e-4)


def test_momentum_of_the_head_alone_is_kept(small):
    client = client_of({**small, "momentum": 0.9})
    client.train(client.model_arrays(), 1, "train")
    kept = client.session.memory.load("optimizer")
    assert [tensor.shape for tensor in kept.values()] == [(10, 100), (10,)]
