"""FedBN (Li et al. 2021): which layers are averaged, which stay, and its limits."""

import numpy as np
import pytest
import torch
from by_hand import CHANGES, assert_rounds, training_data, witnessed
from torch import nn
from torch.nn import functional

from fedkd_flwr.models.vectors import copied_state, fill_from_vectors, model_vectors
from strategies.core.declarations import WITHOUT_BATCH_NORM

HIDDEN = 8


def normalized(shape, classes):
    size = int(np.prod(shape))
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(size, HIDDEN),
        nn.BatchNorm1d(HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, classes),
    )


SHARED = 785 * HIDDEN + (HIDDEN + 1) * 10


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "fedbn", "models": "test_fedbn:normalized"}


def test_vectors_without_batch_normalization_leave_it_out():
    model = normalized((1, 28, 28), 10)
    vectors = model_vectors(model, WITHOUT_BATCH_NORM)
    expected = torch.cat([model[n].weight.detach().flatten() for n in (1, 4)])
    assert set(vectors) == {"weights"}
    assert vectors["weights"].shape == (SHARED,)
    assert np.isin(expected.numpy(), vectors["weights"]).all()
    before = copied_state(model[2])
    fill_from_vectors(model, {"weights": vectors["weights"] + 1}, WITHOUT_BATCH_NORM)
    torch.testing.assert_close(copied_state(model[2]), before, rtol=0, atol=0)


def loss_by_hand(shared, own, images, labels):
    """Return the loss of the network with its parts as flat tensors, on batch statistics."""
    sizes = [784 * HIDDEN, HIDDEN, HIDDEN * 10, 10]
    w1, b1, w2, b2 = torch.split(shared, sizes)
    hidden = images @ w1.view(HIDDEN, 784).T + b1
    mean, variance = hidden.mean(dim=0), hidden.var(dim=0, unbiased=False)
    scale, shift = own
    hidden = torch.relu(scale * (hidden - mean) / torch.sqrt(variance + 1e-5) + shift)
    return functional.cross_entropy(hidden @ w2.view(10, HIDDEN).T + b2, labels)


def test_two_rounds_by_hand(small, tmp_path):
    """Scales and shifts continue where the client left them; the rest continues from the mean."""
    run, _ = witnessed(small, tmp_path / "run")
    owns = [[torch.ones(HIDDEN), torch.zeros(HIDDEN)] for _ in (0, 1)]

    def end_of(sent, n):
        parts = [torch.from_numpy(np.array(sent)), *owns[n]]
        for _ in range(3):
            parts = [part.detach().requires_grad_() for part in parts]
            loss = loss_by_hand(parts[0], parts[1:], *training_data(small, n))
            steps = torch.autograd.grad(loss, parts)
            parts = [p.detach() - 0.2 * s for p, s in zip(parts, steps, strict=True)]
        owns[n] = parts[1:]
        return parts[0].numpy()

    assert_rounds(run, small, end_of, atol=2e-5)
