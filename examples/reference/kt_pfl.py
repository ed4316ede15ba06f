"""KT-pFL in plain loops (Zhang et al., NeurIPS 2021, Algorithm 1).

Clients have different networks, so they cannot average weights. They predict on public images
instead, and each learns from its own mixture of all predictions. The server learns the mixtures:
the knowledge coefficient matrix c, (N, N), row = receiver, column = giver. A client gives more to
those whose predictions resemble its own, and rho keeps c near 1/N, so that all learn from all.

Soft predictions are softmax(logits / T), (P, K), on the public images of a round.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from examples.reference import given

T, LAMBDA, RHO, STEP, SAMPLES = 3.0, 1.0, 0.6, 0.05, 16
"""Temperature, weight of the knowledge term, pull of c towards 1/N, eta_3, and |xi_r| of Eq. 7."""

DISTILLATION_EPOCHS, DISTILLATION_RATE, PUBLIC_BATCH = 2, 0.1, 12
"""R, eta_2 and the batch size of the distillation."""

CONFIG = given.SETTINGS | {
    "strategy": "kt-pfl", "kt-pfl.temperature": T, "kt-pfl.knowledge-weight": LAMBDA,
    "kt-pfl.rho": RHO, "kt-pfl.coefficient-learning-rate": STEP,
    "kt-pfl.coefficient-batch-size": SAMPLES, "kt-pfl.t-squared": False,
    "kt-pfl.distillation-epochs": DISTILLATION_EPOCHS,
    "kt-pfl.distillation-learning-rate": DISTILLATION_RATE,
    "kt-pfl.public-batch-size": PUBLIC_BATCH,
}  # fmt: skip


def run() -> Iterator[tuple[list[tuple[float, float]], np.ndarray]]:
    """Yield the clients' test accuracies and losses, and c, after each round."""
    clients = given.clients(CONFIG)
    sizes = np.array([len(client.labels) for client in clients])
    c = np.full((len(clients), len(clients)), 1 / len(clients))
    teachers: list[Tensor] = []
    for t in range(1, given.ROUNDS + 1):
        public, predictions = given.public_images(CONFIG, t), []
        for n, client in enumerate(clients):
            if teachers:
                # The teacher of the last round, on the public images of the last round.
                distil(client.model, given.public_images(CONFIG, t - 1), teachers[n], t)
            given.train(client, t, n)  # Eq. 5
            predictions.append(torch.softmax(given.logits(client.model, public) / T, dim=1))
        c = stepped(c, torch.stack(predictions).double(), sizes / sizes.sum())
        teachers = [
            sum(float(weight) * soft for weight, soft in zip(row, predictions, strict=True))
            for row in c
        ]
        yield [client.result() for client in clients], c


def distil(model: nn.Module, images: Tensor, teacher: Tensor, t: int) -> None:
    """Minimize KL(teacher || student at T) for R epochs (Eq. 6)."""
    for batch in given.epochs(DISTILLATION_EPOCHS, given.PUBLIC, PUBLIC_BATCH, "public-batches", t):
        student = torch.log_softmax(model(images[batch]) / T, dim=1)
        divergence = teacher[batch] * (teacher[batch].log() - student)
        given.descend(model, divergence.sum(dim=1).mean(), DISTILLATION_RATE)


def stepped(c: np.ndarray, predictions: Tensor, shares: np.ndarray) -> np.ndarray:
    """Take one step on c (Eq. 7), and project its rows onto the probability simplex.

    A mini-batch xi_r of Eq. 7 has 16 samples; this is the mean of all such steps.
    """
    weights = torch.tensor(c, requires_grad=True)
    loss = RHO * (weights - 1 / len(c)).square().sum()
    for n, share in enumerate(shares):
        teacher = sum(weights[n, m] * predictions[m] for m in range(len(c)))
        divergence = (teacher * (teacher / predictions[n]).log()).sum()
        loss = loss + LAMBDA * share * SAMPLES / given.PUBLIC * divergence
    loss.backward()
    return np.array([nearest_distribution(row) for row in c - STEP * weights.grad.numpy()])


def nearest_distribution(row: np.ndarray) -> np.ndarray:
    """Return the point of the simplex nearest to a row: shift it, drop negatives, and repeat."""
    kept = np.ones(len(row), dtype=bool)
    while True:
        shifted = row - (row[kept].sum() - 1) / kept.sum()
        if (shifted[kept] >= 0).all():
            return np.where(kept, shifted, 0)
        kept &= shifted > 0
