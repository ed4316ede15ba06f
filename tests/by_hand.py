"""The mlp on digits without `nn.Module`: clients and servers, written independently."""

import numpy as np
import torch
from helpers import Witness, client_of, run_with
from torch.nn import functional

from fedkd_flwr.client_app import app as client_app

LAYERS = ((100, 784), (100,), (10, 100), (10,))
"""Shapes of the mlp's parameters on digits, in their order."""

CHANGES = {
    "partition": "dirichlet", "num-clients": 2, "max-samples": 300, "models": "mlp",
    "local-epochs": 3, "batch-size": 512, "momentum": 0.0, "learning-rate": 0.2,
}  # fmt: skip
"""Two clients of unequal sizes; plain descent on all samples at once, three steps a round."""

TWO_CLIENTS = {**CHANGES, "local-epochs": 1}

BODY = 785 * 100
"""Numbers of the mlp's hidden layer, which come first in its vector."""


def training_data(flat, partition_id):
    """Return a client's flat images and its labels."""
    data = client_of(flat, partition_id).data
    return data.train_images.flatten(1), data.train_labels


def parts_of(weights, shapes=LAYERS):
    """Return the tensors of flat weights, those of the mlp unless other shapes are given."""
    parts = torch.split(weights, [int(np.prod(shape)) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def logits(weights, images):
    """Return the mlp's logits on flat images, from its flat weights."""
    w1, b1, w2, b2 = parts_of(weights)
    return torch.relu(images @ w1.T + b1) @ w2.T + b2


def trained(weights, images, labels, rate=0.2, steps=1):
    """Take steps of gradient descent on all samples at once."""
    weights = torch.tensor(weights, dtype=torch.float32)
    for _ in range(steps):
        weights.requires_grad_()
        (step,) = torch.autograd.grad(loss_of(weights, images, labels), weights)
        weights = weights.detach() - rate * step
    return weights.numpy()


def sizes_of(flat):
    return np.array([len(training_data(flat, n)[1]) for n in (0, 1)])


def loss_of(weights, images, labels):
    """Return the cross-entropy of the mlp with these flat weights, a tensor."""
    return functional.cross_entropy(logits(weights, images), labels)


def loss_on_test_data(weights, flat, partition_id):
    data = client_of(flat, partition_id).data
    weights = torch.from_numpy(np.array(weights))
    return float(loss_of(weights, data.test_images.flatten(1), data.test_labels))


def gradient(weights, images, labels):
    """Return the gradient of `loss_of`; weights and gradient are flat arrays."""
    weights = torch.from_numpy(np.array(weights)).requires_grad_()
    return torch.autograd.grad(loss_of(weights, images, labels), weights)[0].numpy()


def witnessed(flat, folder, answer=client_app, **changes):
    witness = Witness(answer)
    finished, _ = run_with(witness, flat, folder, **changes)
    return witness, finished


def returned_weights(witness):
    return {
        (t, n): arrays["weights"] for (t, kind, n), arrays in witness.up.items() if kind == "train"
    }


def assert_same_models(one, other, tolerance=0.0):
    expected = returned_weights(other)
    assert expected
    for key, weights in returned_weights(one).items():
        np.testing.assert_allclose(weights, expected[key], rtol=0, atol=tolerance)


def assert_rounds(run, small, end_of, atol=2e-6):
    """Require that clients end where ``end_of(sent, n)`` says, and that their mean is sent.

    `end_of` is called once for each client in each round, in order.
    """
    shares, back = sizes_of(small) / sizes_of(small).sum(), returned_weights(run)
    assert shares[0] != shares[1]
    for t in sorted({t for t, _ in back}):
        sent = run.down[t, "train", 0]["weights"]
        np.testing.assert_array_equal(run.down[t, "train", 1]["weights"], sent)
        ends = [end_of(sent, n) for n in (0, 1)]
        for n in (0, 1):
            np.testing.assert_allclose(back[t, n], ends[n], atol=atol)
            assert np.abs(back[t, n] - sent).max() > 1e-3
        following = run.down[t, "evaluate", 0]["weights"]
        np.testing.assert_allclose(following, shares @ ends, atol=atol)
