"""The mlp on digits without `nn.Module`: clients and servers, written independently."""

import numpy as np
import torch
from helpers import client_of
from torch.nn import functional

LAYERS = ((100, 784), (100,), (10, 100), (10,))
"""Shapes of the mlp's parameters on digits, in their order."""

TWO_CLIENTS = {
    "models": "mlp",
    "partition": "dirichlet",
    "num-clients": 2,
    "max-samples": 300,
    "batch-size": 512,
    "momentum": 0.0,
    "learning-rate": 0.2,
}
"""Two clients of unequal sizes that take one step an epoch, on all of their samples."""


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


def loss_of(weights, images, labels):
    """Return the cross-entropy of flat weights, a number."""
    return float(
        functional.cross_entropy(logits(torch.tensor(weights, dtype=torch.float32), images), labels)
    )


def trained(weights, images, labels, rate=0.2, steps=1):
    """Take steps of gradient descent on all samples at once."""
    weights = torch.tensor(weights, dtype=torch.float32)
    for _ in range(steps):
        weights.requires_grad_()
        loss = functional.cross_entropy(logits(weights, images), labels)
        (gradient,) = torch.autograd.grad(loss, weights)
        weights = weights.detach() - rate * gradient
    return weights.numpy()
