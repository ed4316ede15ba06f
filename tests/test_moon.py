"""MOON (Li et al. 2021): the contrast between three models' features, and its limits."""

import numpy as np
import pytest
import torch
from by_hand import CHANGES, assert_rounds, parts_of, training_data, witnessed
from torch.nn import functional

MU, TAU = 2.0, 0.4


@pytest.fixture
def small(small):
    own = {"strategy": "moon", "moon.mu": MU, "moon.temperature": TAU}
    return {**small, **CHANGES, **own}


def features_and_logits(weights, images):
    w1, b1, w2, b2 = parts_of(weights)
    hidden = torch.relu(images @ w1.T + b1)
    return hidden, hidden @ w2.T + b2


def cosine(first, second):
    return (first * second).sum(dim=1) / (first.norm(dim=1) * second.norm(dim=1))


def by_hand(start, previous, images, labels, steps=3, rate=0.2):
    start, previous = (torch.from_numpy(np.array(weights)) for weights in (start, previous))
    received, old = (features_and_logits(weights, images)[0] for weights in (start, previous))
    weights = start.clone()
    for _ in range(steps):
        weights.requires_grad_()
        own, logits = features_and_logits(weights, images)
        near, far = (cosine(own, other).div(TAU).exp() for other in (received, old))
        contrast = -(near / (near + far)).log().mean()
        loss = functional.cross_entropy(logits, labels) + MU * contrast
        (step,) = torch.autograd.grad(loss, weights)
        weights = weights.detach() - rate * step
    return weights.numpy()


@pytest.mark.parametrize("cohort", ["off", "on"])
def test_two_rounds_by_hand(cohort, small, tmp_path):
    """In the second round the previous model is that of the end of the first one."""
    run, _ = witnessed(small, tmp_path / "run", cohort=cohort)
    previous = [run.down[1, "train", n]["weights"] for n in (0, 1)]

    def end_of(sent, n):
        previous[n] = by_hand(sent, previous[n], *training_data(small, n))
        return previous[n]

    assert_rounds(run, small, end_of, atol=5e-6)


def test_batches_meet_the_features_of_their_own_samples(small, tmp_path):
    """In small batches the contrast of the received model with itself is known."""
    small |= {"batch-size": 7, "local-epochs": 1, "num-server-rounds": 1, "learning-rate": 1e-7}
    _, without = witnessed(small, tmp_path / "without", **{"moon.mu": 0.0})
    _, held = witnessed({**small, "initial-weights": "own"}, tmp_path / "held")
    # A contrast with wrong samples would be near log 2. Client 0 has the common initial network.
    gap = held.clients["train_loss"] - without.clients["train_loss"]
    assert gap[0] == pytest.approx(MU * np.log(2), abs=1e-4)
    assert gap[1] < 0.5 * MU * np.log(2)
