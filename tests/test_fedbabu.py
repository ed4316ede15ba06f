"""FedBABU (Oh et al. 2022): bodies are averaged below one head, which only fine-tuning changes."""

import numpy as np
import pytest
import torch
from by_hand import (
    BODY,
    CHANGES,
    assert_rounds,
    gradient,
    loss_on_test_data,
    trained,
    training_data,
    witnessed,
)
from helpers import assert_refused, client_of

from fedkd_flwr.clients.fedbabu import body_loss, head_loss
from fedkd_flwr.models.vectors import model_vectors
from fedkd_flwr.training.losses import cross_entropy


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "fedbabu", "fedbabu.epochs": 2}


def initial_weights(small):
    return model_vectors(client_of(small).session.new_model())["weights"].copy()


def whole(client):
    return model_vectors(client.model)["weights"].copy()


def test_each_loss_has_the_gradient_of_the_cross_entropy_for_its_part_alone(small):
    model, data = client_of(small).model, client_of(small).data
    found = {}
    for loss in (cross_entropy, head_loss, body_loss):
        model.zero_grad()
        loss(model, data.train_images, data.train_labels).backward()
        found[loss] = [parameter.grad for parameter in model.parameters()]
    whole, head, body = found.values()
    assert head[:2] == [None, None] and body[2:] == [None, None]
    torch.testing.assert_close([*body[:2], *head[2:]], whole)


@pytest.mark.parametrize("cohort", ["off", "on"])
def test_bodies_are_trained_and_averaged_below_the_initial_head(cohort, small, tmp_path):
    """In each round the server sends the mean of the last bodies, weighted by training samples."""
    small |= {"cohort": cohort, "fedbabu.part": "full"}
    run, finished = witnessed(small, tmp_path / "run")
    first, head = np.split(initial_weights(small), [BODY])
    np.testing.assert_array_equal(run.down[1, "train", 0]["weights"], first)

    def end_of(body, n):
        weights = np.concatenate([body, head])
        for _ in range(3):
            weights[:BODY] -= np.float32(0.2) * gradient(weights, *training_data(small, n))[:BODY]
        return weights[:BODY]

    assert_rounds(run, small, end_of)
    losses = finished.clients.set_index(["round", "partition_id"])["loss"]
    for t, n in ((1, 0), (1, 1), (2, 0), (2, 1)):
        body = run.down[t, "evaluate", n]["weights"]
        tuned = trained(np.concatenate([body, head]), *training_data(small, n), steps=2)
        assert losses[t, n] == pytest.approx(loss_on_test_data(tuned, small, n), abs=1e-5)


@pytest.mark.parametrize("changes", [{}, {"weight-decay": 0.1, "momentum": 0.9}])
def test_the_head_has_its_initial_weights_after_training(changes, small):
    """Not even weight decay moves it."""
    client = client_of({**small, **changes})
    before = initial_weights(small)
    client.receive_model(client.model_arrays() | {"weights": before[:BODY]})
    np.testing.assert_array_equal(whole(client), before)
    client.train({"weights": before[:BODY]}, 1, "train")
    np.testing.assert_array_equal(whole(client)[BODY:], before[BODY:])
    assert np.abs(whole(client)[:BODY] - before[:BODY]).max() > 1e-3


@pytest.mark.parametrize("weights", ["common", "own"])
def test_all_clients_have_the_head_of_the_servers_initial_model(weights, small, tmp_path):
    """It belongs to the body that the server sends first, whatever `initial-weights` says."""
    small |= {"initial-weights": weights, "num-server-rounds": 1}
    run, _ = witnessed(small, tmp_path / "run")
    expected = initial_weights({**small, "initial-weights": "common"})
    for n in (0, 1):
        client, received = client_of(small, n), run.down[1, "train", n]
        client.receive_model(received)
        np.testing.assert_array_equal(received["weights"], expected[:BODY])
        np.testing.assert_array_equal(whole(client), expected)


@pytest.mark.parametrize(
    ("part", "moved"), [("full", (True, True)), ("head", (False, True)), ("body", (True, False))]
)
def test_fine_tuning_moves_the_chosen_part_alone_by_its_gradient(part, moved, small):
    client = client_of({**small, "fedbabu.part": part})
    before = initial_weights(small)
    client.session.evaluating.prepared({"weights": before[:BODY]}, 1)
    free = np.repeat(np.array(moved, np.float32), [BODY, len(before) - BODY])
    expected = before
    for _ in range(2):
        step = free * gradient(expected, *training_data(small, 0))
        expected = expected - np.float32(0.2) * step
    np.testing.assert_allclose(whole(client), expected, atol=2e-6)
    changed = whole(client) != before
    assert [part.any() for part in np.split(changed, [BODY])] == [*moved]


def test_a_model_of_one_layer_is_refused(small, tmp_path):
    small |= {"models": "tests.test_fedrep:OneLayer"}
    sentence = "fedbabu: the model has one layer, and so no body"
    assert_refused(sentence, small, tmp_path / "run")
