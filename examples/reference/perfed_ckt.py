"""PerFed-CKT in plain loops (Cho et al. 2021, Algorithm 1).

Clients have different networks and predict on public images without labels. The server clusters
the predictions of a round's clients, and sends all centroids to the clients of the next round.
Each client takes the centroid nearest to its own predictions: co-distillation with those who are
like it, without the server saying who they are. It trains on its own data and towards that
centroid at once, and sends nothing but predictions. Clients with more data are sampled more often.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from examples.reference import given
from strategies.core.randomness import random_generator

CLUSTERS, LAMBDA, TAU, PUBLIC_BATCH, SAMPLED = 2, 2.0, 6, 24, 4
"""c, the weight of the distance, local iterations, the public batch b', and m clients a round."""

CONFIG = given.SETTINGS | {
    "strategy": "perfed-ckt", "num-clients": 5, "fraction-train": SAMPLED / 5,
    "local-iterations": TAU, "perfed-ckt.clusters": CLUSTERS, "weight-cap": 0.0,
    "perfed-ckt.regularization-weight": LAMBDA, "perfed-ckt.public-batch-size": PUBLIC_BATCH,
}  # fmt: skip


def run() -> Iterator[tuple[list[tuple[float, float]], np.ndarray]]:
    """Yield all clients' test accuracies and losses, and centroids (c, P, K), each round."""
    clients = given.clients(CONFIG)
    sizes = np.array([len(client.labels) for client in clients])
    public = given.public_images(CONFIG, 0)  # fixed for the run
    centroids = None
    for t in range(1, given.ROUNDS + 1):
        predictions = []
        for n in sampled(sizes, t):
            target = None
            if centroids is not None:
                target = torch.from_numpy(nearest(centroids, predicted(clients[n], public)))
            train(clients[n], public, target, t, n)
            predictions.append(predicted(clients[n], public))
        centroids = best_centroids(np.array(predictions))
        yield [client.result() for client in clients], centroids


def sampled(sizes: np.ndarray, t: int) -> list[int]:
    """Draw m clients without replacement, with p_k = their share of the data."""
    draw = random_generator(given.SEED, "sampling", t)
    return sorted(draw.choice(len(sizes), SAMPLED, replace=False, p=sizes / sizes.sum()).tolist())


def predicted(client: given.Client, public: Tensor) -> np.ndarray:
    """Return s_k, a client's predictions on the public images, (P, K), at temperature 1."""
    return torch.softmax(given.logits(client.model, public), dim=1).numpy()


def nearest(centroids: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return the centroid with the smallest squared L2 distance (Eq. 4)."""
    return centroids[np.argmin([given.squared_distance(centroid, own) for centroid in centroids])]


def train(client: given.Client, public: Tensor, target: Tensor | None, t: int, n: int) -> None:
    """Take tau steps on cross-entropy + lambda ||target - s||² (Eq. 2)."""
    own = given.iterations(TAU, len(client.labels), given.BATCH, "batches", t, n)
    shared = given.iterations(TAU, given.PUBLIC, PUBLIC_BATCH, "public-batches", t)
    for batch, public_batch in zip(own, shared, strict=True):
        outputs = client.model(client.images[batch])
        loss = functional.cross_entropy(outputs, client.labels[batch])
        if target is not None:
            s = torch.softmax(client.model(public[public_batch]), dim=1)
            loss = loss + LAMBDA * (target[public_batch] - s).square().sum(dim=1).mean()
        given.descend(client.model, loss, given.RATE)


def best_centroids(predictions: np.ndarray) -> np.ndarray:
    """Return the means of the clusters that k-means looks for, by trying all clusterings."""

    def means(labels: np.ndarray) -> list[np.ndarray]:
        return [predictions[labels == cluster].mean(axis=0) for cluster in range(CLUSTERS)]

    def spread(labels: np.ndarray) -> float:
        around = means(labels)
        pairs = zip(predictions, labels, strict=True)
        return sum(given.squared_distance(own, around[cluster]) for own, cluster in pairs)

    clusterings = map(np.array, itertools.product(range(CLUSTERS), repeat=len(predictions)))
    whole = [labels for labels in clusterings if len(set(labels.tolist())) == CLUSTERS]
    return np.array(means(min(whole, key=spread)))
