"""Batch normalization through every aggregation: variances stay variances, counters stay counts."""

import numpy as np
import pytest
import torch
from helpers import Witness, client_of, run_with
from stored_runs import SUPERNET
from torch import nn

from fedkd_flwr.clients.prototypes import class_means
from fedkd_flwr.config import read_config
from fedkd_flwr.memory import own_context
from fedkd_flwr.methods import METHODS
from fedkd_flwr.models.features import features
from fedkd_flwr.models.model_pool import Architecture, borrow, give_back
from fedkd_flwr.models.vectors import copied_state, model_vectors
from fedkd_flwr.training.loop import (
    evaluate,
    predict_logits,
    refresh_statistics,
    statistics_of,
)
from fedkd_flwr.training.server_models import RunModels
from strategies.core.method_record import Need
from strategies.parameters import ParameterStrategy, SharedModelStrategy
from tests.disclosure import SEARCHES

COUNTER = "num_batches_tracked"
# FedBN sends no batch normalization.
PARAMETER_METHODS = [
    name
    for name, method in METHODS.items()
    if issubclass(method.strategy, ParameterStrategy) and name != "fedbn"
]


def settings_for(small, strategy):
    """Return a run of three clients in which what crosses the network has normalization."""
    size = {"num-clients": 3, "max-samples": 150, "num-server-rounds": 2}
    if issubclass(METHODS[strategy].strategy, SharedModelStrategy):
        models = {"models": "mlp", f"{strategy}.shared-model": "darts"}
    elif strategy in SEARCHES:
        models = {"models": "darts"}
    else:
        return {**small, **size, "models": "tests.disclosure:NormedNet"}
    # SPIDER prunes one edge of a cell a round, and this supernet's cells have two.
    tiny = {"supernet-channels": 2, "supernet-nodes": 1}
    return {**small, **SUPERNET, **models, **tiny, **size}


def model_that_travels(flat):
    models = read_config(flat).run.models
    name = "darts" if "darts" in flat.values() else "tests.disclosure:NormedNet"
    return Architecture(name, (1, 28, 28), 10, models.search_space, "cpu").build()


def are_variances(model):
    floats = {k: t for k, t in model.state_dict().items() if t.is_floating_point()}
    parameters = {name for name, _ in model.named_parameters()}
    return np.concatenate(
        [
            np.full(tensor.numel(), name.endswith("running_var"))
            for name, tensor in floats.items()
            if name not in parameters
        ]
    )


def parts_in(messages, kind):
    """Return every vector of a kind that traveled, in whatever part of a message."""
    return [
        array
        for arrays in messages.values()
        for name, array in arrays.items()
        if name.rpartition("/")[2] == kind
    ]


@pytest.mark.parametrize(
    "strategy",
    [name if name == "fedavg" else pytest.param(name, marks=pytest.mark.slow)
     for name in PARAMETER_METHODS],
)  # fmt: skip
def test_statistics_and_counters_keep_their_meaning(strategy, small, tmp_path):
    flat = {**settings_for(small, strategy), "strategy": strategy}
    witness = Witness()
    run, grid = run_with(witness, flat, tmp_path / "run")
    assert (run.rounds["failures"] == 0).all()
    up, down = (parts_in(messages, "buffers") for messages in (witness.up, witness.down))
    assert up and down
    assert {array.dtype for array in up + down} == {np.dtype(np.float32)}
    model = model_that_travels(flat)
    is_variance = are_variances(model)[: len(up[0])]  # of the body alone it is the beginning
    assert is_variance.any()
    assert all((array[..., is_variance] > 0).all() for array in up + down)
    if Need.PUBLIC_DATA_ON_SERVER not in METHODS[strategy].record.needs:
        # A mean lies between what it is made of, whatever its weights.
        initial = model_vectors(model)["buffers"][: len(up[0])]
        low, high = (bound([initial, *up], axis=0) for bound in (np.min, np.max))
        for array in down:
            assert (array >= low - 1e-5).all() and (array <= high + 1e-5).all()
    for context in grid.contexts.values():
        for name, kept in own_context(context).memory.tensors.items():
            counters = [array for key, array in kept.items() if key.endswith(COUNTER)]
            # No client has trained on more batches than these.
            assert all(a.dtype == torch.int64 and 0 <= a <= 200 for a in counters), name


@pytest.mark.parametrize("strategy", ["fedavg", "fedper", "fedbn", "fml"])
def test_layers_are_named_parts_of_the_vectors_that_travel(strategy, small):
    flat = {**settings_for(small, strategy), "strategy": strategy}
    configuration = read_config(flat)
    run, settings = configuration.run, configuration.settings
    method = run.method.strategy(run.server_plan(), settings, server_models=RunModels(run))
    model = model_that_travels(flat)
    vectors = model_vectors(model, method.shared_layers(settings))
    layers, state = method.layers(vectors), model.state_dict()
    assert [name for name in state if name in layers] == list(layers)
    for name, array in layers.items():
        np.testing.assert_array_equal(array, state[name])
        array[...] = 7
    assert all((vector == 7).all() for vector in vectors.values())


def test_a_borrowed_model_resets_its_batch_counters():
    """It is filled with vectors, which have no counters: another client's would stay."""
    architecture = Architecture(
        "shufflenetv2", (1, 28, 28), 10, read_config({}).run.models.search_space, "cpu"
    )
    model = architecture.build()
    model.train()(torch.zeros(2, 1, 28, 28))
    give_back(model)
    again = borrow(architecture)
    assert again is model
    counters = [tensor for name, tensor in again.state_dict().items() if name.endswith(COUNTER)]
    assert counters and all(tensor.dtype == torch.int64 and tensor == 0 for tensor in counters)


# ---- Statistics in evaluations -------------------------------------------------------


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
    return {**small, "models": "test_batch_norm:Normalized", "num-server-rounds": 1}


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
