"""FedGen (Zhu et al. 2021): the generator and its use by hand, the limit, state and refusals."""

import numpy as np
import pytest
import torch
from by_hand import CHANGES, parts_of, returned_weights, witnessed
from helpers import breaking, client_of, replacing, run_with
from torch import nn
from torch.nn import functional

import fedkd_flwr
from fedkd_flwr.training.feature_generator import draws, generator_loss
from strategies.core.randomness import random_generator
from strategies.fedgen import shares_by_class


@pytest.fixture
def small(small):
    changes = {"fedgen.hidden-size": 8, "fedgen.noise-size": 4, "fedgen.server-steps": 3}
    return {**small, **CHANGES, "strategy": "fedgen", "fedgen.weight": 2.0, **changes}


def generator_in(message):
    return {k.removeprefix("generator/"): torch.tensor(v) for k, v in message.items() if "/" in k}


def features_of(g, classes, noise):
    rows = []
    for k, e in zip(classes, noise, strict=True):
        entering = torch.cat([e, torch.eye(10)[k]])
        hidden = torch.relu(g["hidden"] @ entering + g["hidden-bias"])
        rows.append(g["output"] @ hidden + g["output-bias"])
    return torch.stack(rows)


def test_the_second_round_of_a_client_by_hand(small, tmp_path):
    """The first round is FedAvg's; in the second the head also learns from the generator."""
    run, _ = witnessed(small, tmp_path / "run")
    back, sent = returned_weights(run), run.down[2, "train", 1]
    shares, client = sent["class-shares"], client_of(small, 1)
    assert not run.down[1, "train", 1]["class-shares"].any()
    assert shares.sum() == pytest.approx(1)
    g, images = generator_in(sent), client.data.train_images.flatten(1)
    batches = draws(g, shares, 32, random_generator(0, "generated", 2, 1))
    weights = torch.tensor(sent["weights"])
    for _ in range(3):
        weights.requires_grad_()
        classes, noise = next(batches)
        w1, b1, w2, b2 = parts_of(weights)
        logits = torch.relu(images @ w1.T + b1) @ w2.T + b2
        own = functional.cross_entropy(logits, client.data.train_labels)
        guessed = features_of(g, classes, noise) @ w2.T + b2
        loss = own + 2.0 * 0.98 * functional.cross_entropy(guessed, classes)
        (slope,) = torch.autograd.grad(loss, weights)
        weights = weights.detach() - 0.2 * slope
    np.testing.assert_allclose(back[2, 1], weights.numpy(), atol=1e-5)


def test_the_servers_loss_by_hand():
    torch.manual_seed(0)
    sizes = {"hidden": (5, 7), "hidden-bias": (5,), "output": (6, 5), "output-bias": (6,)}
    g = {name: torch.randn(shape) for name, shape in sizes.items()}
    heads, shares = [nn.Linear(6, 3), nn.Linear(6, 3)], torch.tensor([[1, 0.2, 0], [0, 0.8, 1]])
    classes, noise = torch.tensor([0, 1, 1, 2]), torch.rand(4, 4)
    entering = torch.cat([noise, torch.eye(3)[classes]], dim=1)
    features = torch.relu(entering @ g["hidden"].T + g["hidden-bias"]) @ g["output"].T
    features = features + g["output-bias"]
    expected, product = 0.0, 0.0
    for a in range(4):
        for head, share in zip(heads, shares, strict=True):
            log_p = head(features[a]).log_softmax(dim=0).detach()
            expected -= float(share[classes[a]] * log_p[classes[a]]) / 4
        for b in range(4):
            near = (noise[a] - noise[b]).square().mean() * (features[a] - features[b]).abs().mean()
            product += float(near) / 16
    loss = generator_loss(g, heads, shares, classes, noise, diversity=0.5)
    assert float(loss.detach()) == pytest.approx(expected + 0.5 * np.exp(-product), rel=1e-5)


def test_classes_without_samples_have_no_teacher():
    counts = np.array([[3.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(shares_by_class(counts), [[0.75, 0, 1], [0.25, 0, 0]])


@pytest.mark.parametrize(
    "arrays",
    [
        {"weights": np.full(79510, np.nan, np.float32)},
        {"class-counts": np.full(10, -1, np.float32)},
        {"class-counts": np.zeros(10, np.float32)},
        {"class-counts": np.ones(9, np.float32)},
        {"class-counts": np.full(10, np.inf, np.float32)},
    ],
)
def test_an_invalid_reply_is_refused(arrays, small, tmp_path):
    run, _ = run_with(breaking(replacing(**arrays)), small, tmp_path / "run")
    assert list(run.rounds["failures"]) == [1, 1]


def test_counts_weigh_no_more_than_the_size_on_record(small, tmp_path):
    own = client_of(small, 1).data.class_counts.numpy().astype(np.float32)
    boast = breaking(replacing(**{"class-counts": own * 1000}))
    found, _ = run_with(boast, small, tmp_path / "boast")
    honest = fedkd_flwr.run(small, output_dir=tmp_path / "honest")
    np.testing.assert_allclose(found.clients["loss"], honest.clients["loss"], rtol=1e-4)
