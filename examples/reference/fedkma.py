"""FedKMA in plain loops (Wang and Wang, Algorithm 1).

Clients search for an architecture: in a supernet, each edge is a mixture of operations, weighted
by the softmax of alpha. They train alpha and the network weights omega in turn. To mix them, the
server compares how clients see each class: z_jk, (K,), is the mean logit vector of client j on its
samples of class k. From H, clients compute their rows of the matrix M; the label distribution p_i
stays with client i, which continues with Σ_j M[i, j] (omega_j, alpha_j).
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.reference import given

LAMBDA, ALPHA_RATE, MOMENTUM, DECAY, EPOCHS, BATCH = 0.5, 0.05, 0.9, 3e-4, 3, 512
"""Weight of similarity in H, and how both kinds of weights are trained: on all images at once."""

CONFIG = given.SETTINGS | {
    "strategy": "fedkma", "models": "darts", "supernet-channels": 2, "supernet-cells": 3,
    "supernet-nodes": 1, "supernet-stem-stride": 2, "public-dataset": "none",
    "supernet-operations": "none,skip_connect,max_pool_3x3,sep_conv_3x3", "num-clients": 3,
    "momentum": MOMENTUM, "weight-decay": DECAY, "local-epochs": EPOCHS, "batch-size": BATCH,
    "fedkma.similarity-weight": LAMBDA, "fedkma.alpha-learning-rate": ALPHA_RATE,
}  # fmt: skip


def run() -> Iterator[tuple[list[tuple[float, float]], np.ndarray]]:
    """Yield test accuracies and losses of the mixed models, and M, (N, N), after each round."""
    clients = given.clients(CONFIG)
    for t in range(1, given.ROUNDS + 1):
        for n, client in enumerate(clients):
            search(client, t, n)
            measure_statistics(client)
        seen = [mean_logits(client) for client in clients]
        sharing = np.array(
            [sharing_row(client, own, seen) for client, own in zip(clients, seen, strict=True)]
        )
        mixed = [given.mixture([client.model for client in clients], row) for row in sharing]
        for client, model in zip(clients, mixed, strict=True):
            client.model = model
            measure_statistics(client)
        yield [client.result() for client in clients], sharing


def search(client: given.Client, t: int, n: int) -> None:
    """Take a step on alpha and one on omega in turn, each on all training data (line 20)."""
    named, count = list(client.model.named_parameters()), len(client.labels)
    alphas = [weights for name, weights in named if name.startswith("alpha")]
    omegas = [weights for name, weights in named if not name.startswith("alpha")]
    on_alpha = torch.optim.SGD(alphas, ALPHA_RATE, MOMENTUM, weight_decay=DECAY)
    on_omega = torch.optim.SGD(omegas, given.RATE, MOMENTUM, weight_decay=DECAY)
    of_omega = list(given.epochs(EPOCHS, count, BATCH, "batches", t, n))
    of_alpha = given.iterations(len(of_omega), count, BATCH, "alpha-batches", t, n)
    client.model.train()
    for batches in zip(of_alpha, of_omega, strict=True):
        for batch, optimizer in zip(batches, (on_alpha, on_omega), strict=True):
            client.model.zero_grad()
            outputs = client.model(client.images[batch])
            functional.cross_entropy(outputs, client.labels[batch]).backward()
            optimizer.step()


@torch.no_grad()
def measure_statistics(client: given.Client) -> None:
    """Set the statistics of batch normalization to those of the training images."""
    layers = [layer for layer in client.model.modules() if isinstance(layer, nn.BatchNorm2d)]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    client.model.train()(client.images)
    for layer in layers:
        layer.momentum = 0.1


def mean_logits(client: given.Client) -> dict[int, Tensor]:
    """Return z_k of each class that the client holds."""
    outputs = given.logits(client.model, client.images).double()
    return {k: outputs[client.labels == k].mean(dim=0) for k in client.labels.unique().tolist()}


def sharing_row(
    client: given.Client, own: dict[int, Tensor], seen: list[dict[int, Tensor]]
) -> list[float]:
    """Return client i's row of M (Eq. 11): the closer client j for i's classes, the larger."""
    distances = []
    for other in seen:
        distance = 0.0
        for k in own:
            theirs = other.get(k, torch.zeros_like(own[k]))  # uniform if client j lacks the class
            q_i, q_j = torch.softmax(own[k], dim=0), torch.softmax(theirs, dim=0)
            divergence = (q_i * (q_i / q_j).log()).sum()
            irrelevancy = LAMBDA * divergence - (1 - LAMBDA) * q_j[k].log()  # H[i, j, k], Eq. 12
            distance += float((client.labels == k).double().mean() * irrelevancy)
        distances.append(distance)
    weights = np.exp(-np.array(distances))
    return (weights / weights.sum()).tolist()
