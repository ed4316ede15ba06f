"""Batch-normalization statistics in evaluation: which layers and which accuracies use them."""

import numpy as np
import pytest
import torch
from helpers import client_of
from torch import nn

import fedkd_flwr
from fedkd_flwr.clients.prototypes import class_means
from fedkd_flwr.models.features import features
from fedkd_flwr.models.vectors import copied_state, model_vectors
from fedkd_flwr.training.loop import (
    evaluate,
    predict_logits,
    refresh_statistics,
    statistics_of,
)
from strategies.persfl import PAIRS


class Normalized(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        layers = [nn.Conv2d(shape[0], 4, 5, stride=3), nn.BatchNorm2d(4), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.head = nn.Linear(64, classes)

    def forward(self, samples):
        return self.head(self.body(samples))


@pytest.fixture
def small(small):
    return {**small, "models": "test_statistics:Normalized", "num-server-rounds": 1}


def skewed(client):
    """Train a client's model, and return it with wrong running statistics."""
    client.train_locally(1)
    vectors = model_vectors(client.model)
    return {**vectors, "buffers": vectors["buffers"] + 5}


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm1d, (60, 2)),
        (nn.BatchNorm1d, (60, 2, 5)),
        (nn.BatchNorm2d, (60, 2, 3, 3)),
        (nn.BatchNorm3d, (60, 2, 3, 3, 3)),
    ],
)
def test_layers_of_any_dimension_get_fresh_statistics(layer, shape):
    model, samples = nn.Sequential(layer(2)), torch.randn(shape) * 4 + 7
    refresh_statistics(model, samples)
    others = [0, *range(2, len(shape))]
    expected = samples.mean(dim=others), samples.var(dim=others)
    torch.testing.assert_close((model[0].running_mean, model[0].running_var), expected)


def test_without_running_statistics_there_is_no_pass_over_the_data():
    model, passes = nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False)), []
    model.register_forward_hook(lambda *_: passes.append(1))
    refresh_statistics(model, torch.randn(60, 2, 3, 3))
    assert not passes


@pytest.mark.parametrize("strategy", ["ditto", "pfedme"])
@pytest.mark.parametrize("statistics", ["fresh", "kept"])
def test_the_global_model_is_evaluated_with_the_same_statistics(strategy, statistics, small):
    """A client that never took part has only the global model."""
    changes = {"strategy": strategy, "batch-norm-statistics": statistics}
    client = client_of({**small, **changes})
    vectors = skewed(client)
    call = {"names": list(vectors), "server-round": 1}
    _, _, metrics = client.evaluate(list(vectors.values()), call)
    assert metrics["global-test-correct"] == metrics["own-test-correct"]
    assert metrics["global-test-loss"] == metrics["own-test-loss"]


def test_evaluation_does_not_change_the_statistics_of_training(small):
    client = client_of(small, strategy="persfl")
    client.receive_model(skewed(client))
    before = copied_state(client.model)
    accuracy = client.test_accuracy()
    after = client.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    data = client.data
    refresh_statistics(client.model, data.train_images)
    result = evaluate(client.model, data.test_images, data.test_labels)
    assert accuracy == result.correct / result.total


@pytest.mark.parametrize("strategy", ["fedproto", "fd"])
def test_class_means_have_the_statistics_of_an_evaluation(strategy, small):
    client = client_of(small, strategy=strategy)
    means = client.train({}, 1, "").arrays["class-means"]

    def means_now():
        images, labels = client.data.train_images, client.data.train_labels
        logits = predict_logits(client.model, images)
        with torch.no_grad():
            entered = features(client.model, images)
        values = logits.softmax(dim=1) if strategy == "fd" else entered
        return class_means(values, labels, client.data.classes)[0]

    with statistics_of(client.model, client.data.train_images):
        np.testing.assert_allclose(means, means_now(), atol=1e-5)
    assert np.abs(means - means_now().numpy()).max() > 0.01


def test_persfls_pairs_are_evaluated_like_its_clients(small, tmp_path):
    run = fedkd_flwr.run({**small, "strategy": "persfl"}, output_dir=tmp_path / "run")
    last, pairs = run.clients.set_index("partition_id"), run.table(PAIRS)
    for n, row in last.iterrows():
        is_kept = (
            (pairs["partition_id"] == n)
            & (pairs["lambda"] == row["lambda"])
            & (pairs["temperature"] == row["temperature"])
        )
        assert pairs[is_kept]["accuracy"].tolist() == [row["accuracy"]]
