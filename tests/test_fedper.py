"""FedPer (Arivazhagan et al. 2019): bodies are averaged, heads stay where they are."""

import numpy as np
import pytest
import torch
from by_hand import (
    BODY,
    CHANGES,
    assert_rounds,
    loss_on_test_data,
    trained,
    training_data,
    witnessed,
)
from helpers import client_of
from torch import nn

import fedkd_flwr
from fedkd_flwr.models.build import build_model
from fedkd_flwr.models.layers import head_of
from fedkd_flwr.models.vectors import fill_from_vectors, model_vectors


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "fedper"}


def test_vectors_of_body_and_head_add_up_to_the_model():
    model = build_model("resnet18", (1, 28, 28), 10)
    parts = slice(None), slice(None, -1), slice(-1, None)
    whole, body, head = (model_vectors(model, part) for part in parts)
    parts = body["weights"], head["weights"]
    np.testing.assert_array_equal(whole["weights"], np.concatenate(parts))
    np.testing.assert_array_equal(whole["buffers"], body["buffers"])
    layer = head_of(model)
    flat = torch.cat([layer.weight.detach().flatten(), layer.bias.detach()])
    np.testing.assert_array_equal(head["weights"], flat)
    assert set(head) == {"weights"}


def test_filling_the_body_leaves_the_head_and_the_counters_alone():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    head = head_of(model).weight.detach().clone()
    body = {kind: vector + 1 for kind, vector in model_vectors(model, slice(None, -1)).items()}
    fill_from_vectors(model, body, slice(None, -1))
    np.testing.assert_array_equal(model_vectors(model, slice(None, -1))["buffers"], body["buffers"])
    torch.testing.assert_close(head_of(model).weight.detach(), head, rtol=0, atol=0)
    assert model[1].num_batches_tracked.dtype == torch.int64
    with pytest.raises(ValueError, match="the model has 15 weights, and 23 were sent"):
        fill_from_vectors(model, model_vectors(model), slice(None, -1))


def test_bodies_are_averaged_and_heads_stay_personal(small, tmp_path):
    run, finished = witnessed(small, tmp_path / "run")
    heads = [model_vectors(client_of(small, n).model)["weights"][BODY:] for n in (0, 1)]

    def end_of(body, n):
        assert body.shape == (BODY,)
        weights = trained(np.concatenate([body, heads[n]]), *training_data(small, n), steps=3)
        heads[n] = weights[BODY:]
        return weights[:BODY]

    assert_rounds(run, small, end_of)
    for n in (0, 1):
        body = run.down[2, "evaluate", n]["weights"]
        expected = loss_on_test_data(np.concatenate([body, heads[n]]), small, n)
        losses = finished.clients.set_index(["round", "partition_id"])["loss"]
        assert losses[2, n] == pytest.approx(expected, abs=1e-5)


def test_a_method_that_shares_no_layer_is_told(small, logged, tmp_path):
    changes = {"fedper.personal-layers": 2, "num-server-rounds": 1}
    fedkd_flwr.run({**small, **changes}, output_dir=tmp_path / "run")
    assert "fedper shares no layer of mlp: each client trains alone" in logged()
