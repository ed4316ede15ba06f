"""PersFL in plain loops (Divi et al. 2021, Algorithm 1).

Stage 1 is FedAvg. A client keeps the global model that is best on its validation data, its optimal
teacher: the last model is not the best one for everybody. In stage 2 it distills that teacher into
a model of its own, for each pair (lambda, T) of a grid, and keeps the best. lambda says how much
the student follows the teacher rather than the labels, T how soft the teacher's predictions are.
"""

from collections.abc import Iterator
from copy import deepcopy

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from examples.reference import given

LAMBDAS, TEMPERATURES = (0.0, 0.5), (1.0, 5.0)
RATE, DISTILLATION_EPOCHS, DISTILLATION_RATE = 0.3, 2, 0.1

CONFIG = given.SETTINGS | {
    "strategy": "persfl", "models": "mlp", "weighting": "uniform", "learning-rate": RATE,
    "persfl.imitation": "0,0.5", "persfl.temperatures": "1,5",
    "persfl.distillation-epochs": DISTILLATION_EPOCHS,
    "persfl.distillation-learning-rate": DISTILLATION_RATE,
}  # fmt: skip


def run() -> Iterator[tuple[list[tuple[float, float]], np.ndarray]]:
    """Yield test accuracies and losses, and what clients chose after each round.

    That is (N, 3): their teachers' rounds, lambda and T. Before the last round, results are the
    global model's, and nothing is chosen yet.
    """
    clients = given.clients(CONFIG)
    optimal: list[tuple[float, int, nn.Module]] = [(np.inf, 0, client.model) for client in clients]
    shared = clients[0].model
    for t in range(1, given.ROUNDS + 1):
        for n, client in enumerate(clients):
            optimal[n] = better(optimal[n], client, shared, t - 1)
            client.model = deepcopy(shared)
            given.train(client, t, n, RATE)
        equal = np.full(len(clients), 1 / len(clients))
        shared = given.mixture([client.model for client in clients], equal)  # Eq. 4
        for client in clients:
            client.model = shared
        if t < given.ROUNDS:
            yield [client.result() for client in clients], np.empty((0, 3))
    chosen = []
    for n, client in enumerate(clients):
        _, best_round, teacher = better(optimal[n], client, shared, given.ROUNDS)
        students = [
            (distilled(client, teacher, share, temperature, n), share, temperature)
            for share in LAMBDAS
            for temperature in (TEMPERATURES if share else TEMPERATURES[:1])
        ]
        client.model, *pair = max(students, key=lambda one: rank(one[0], client))
        chosen.append([best_round, *pair])
    yield [client.result() for client in clients], np.array(chosen)


def rank(model: nn.Module, client: given.Client) -> tuple[int, float]:
    """Return correct predictions on the client's validation data, and minus the loss."""
    correct, loss = given.evaluated(model, *client.validation)
    return correct, -loss


def better(
    optimal: tuple[float, int, nn.Module], client: given.Client, model: nn.Module, t: int
) -> tuple[float, int, nn.Module]:
    """Return the optimal teacher so far, or the model of round t if its loss is lower (Eq. 2)."""
    _, loss = given.evaluated(model, *client.validation)
    return (loss, t, deepcopy(model)) if loss < optimal[0] else optimal


def distilled(
    client: given.Client, teacher: nn.Module, share: float, temperature: float, n: int
) -> nn.Module:
    """Return a student that began as its teacher (Eq. 3; Algorithm 1, line 19, has this KL)."""
    student, count = deepcopy(teacher), len(client.labels)
    soft = torch.softmax(given.logits(teacher, client.images) / temperature, dim=1)
    for batch in given.epochs(
        DISTILLATION_EPOCHS, count, given.BATCH, "distillation-batches", given.ROUNDS, n
    ):
        outputs = student(client.images[batch])
        hard = functional.cross_entropy(outputs, client.labels[batch])
        log_student = torch.log_softmax(outputs / temperature, dim=1)
        divergence = (soft[batch] * (soft[batch].log() - log_student)).sum(dim=1).mean()
        loss = (1 - share) * hard + share * temperature**2 * divergence
        given.descend(student, loss, DISTILLATION_RATE)
    return student
