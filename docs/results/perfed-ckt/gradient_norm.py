"""PerFed-CKT, Theorem 4.1: the norm of the gradient of a client's objective, by iteration.

    PYTHONPATH=docs/results python docs/results/perfed-ckt/gradient_norm.py

Algorithm 1 with one iteration a round (tau = 1), as the theorem assumes, on the bundled digits:
all clients take part, and the server clusters their predictions in every round. The theorem asks
for step sizes whose sum is infinite and whose squares have a finite sum; ``decreasing`` is such a
sequence, ``constant`` is not. The norm is that of the gradient of Eq. 1 over all private and all
public samples of a client, given its centroid. The results are written to `measurements.jsonl`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measurements import write_measurements
from runs import maker
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from fedkd_flwr.clients.perfed_ckt import nearest_centroid
from fedkd_flwr.config import read_config
from fedkd_flwr.data.client_data import ClientData
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.models.build import build_model
from fedkd_flwr.runs.provenance import provenance
from fedkd_flwr.training.loop import random_batches
from fedkd_flwr.training.losses import CoDistillation
from strategies.perfed_ckt import cluster_predictions

CLIENTS, CLUSTERS, PUBLIC, BATCH = 8, 3, 100, 32
ROUNDS = (1, 10, 100, 200)
"""Rounds after which the norm is measured."""

FIRST_STEP = 0.5
STEPS: dict[str, Callable[[int], float]] = {
    "constant": lambda t: FIRST_STEP,
    "decreasing": lambda t: FIRST_STEP / (1 + t / 10) ** 0.6,
}
"""Step size after t iterations, from 0."""

CONFIG = {
    "strategy": "perfed-ckt",
    "dataset": "digits",
    "partition": "dirichlet-clients",
    "alpha": 1.25,
    "client-split": "60/0/40",
    "held-out-size": PUBLIC,
    "public-size": PUBLIC,
    "models": "mlp",
    "num-clients": CLIENTS,
}


def gradient(model: nn.Module, loss: Tensor) -> Tensor:
    """Return the gradient of a loss by all weights, as one vector."""
    return parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))


class Client:
    """A client of Algorithm 1: its samples, its model and its centroid."""

    def __init__(self, data: ClientData, seed: int, weight: float) -> None:
        torch.manual_seed(seed)
        self.data, self.public = data, data.public_images[:PUBLIC]
        self.model = build_model("mlp", data.shape, data.classes)
        self.loss = CoDistillation(weight)
        generator = np.random.default_rng(seed)
        self.private = random_batches(len(data.train_labels), BATCH, generator)
        self.shared = random_batches(PUBLIC, BATCH, generator)
        self.centroid = torch.empty(0)

    @torch.no_grad()
    def predictions(self) -> Tensor:
        """Return the soft predictions on the public samples, (P, K)."""
        return functional.softmax(self.model(self.public), dim=1)

    def receive(self, centroids: Tensor) -> None:
        """Keep the nearest centroid (Eq. 4)."""
        self.centroid = centroids[nearest_centroid(centroids, self.predictions())]

    def objective(self, own: Tensor, shared: Tensor) -> Tensor:
        """Return Eq. 1 over some private and some public samples."""
        data = self.data
        return self.loss(
            self.model,
            data.train_images[own],
            data.train_labels[own],
            self.public[shared],
            self.centroid[shared],
        )

    def norm(self) -> float:
        """Return the norm of the gradient over all samples."""
        own, shared = torch.arange(len(self.data.train_labels)), torch.arange(PUBLIC)
        return float(gradient(self.model, self.objective(own, shared)).norm())

    def step(self, size: float) -> None:
        """Take one step on a batch of each kind."""
        loss = self.objective(next(self.private), next(self.shared))
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        with torch.no_grad():
            for parameter, slope in zip(self.model.parameters(), gradients, strict=True):
                parameter -= size * slope


def norms(seed: int, steps: str, weight: float) -> list[dict[str, Any]]:
    """Run Algorithm 1, and return a line for each measured round."""
    plan = read_config({**CONFIG, "seed": seed}).run.data_plan
    clients = [Client(load_client(plan, n), seed, weight) for n in range(CLIENTS)]
    lines = []
    for t in range(max(ROUNDS)):
        predictions = torch.stack([client.predictions() for client in clients]).numpy()
        centroids, _ = cluster_predictions(predictions, CLUSTERS, seed=t)
        for client in clients:
            client.receive(torch.from_numpy(centroids))
        if t + 1 in ROUNDS:
            found = [client.norm() for client in clients]
            named = {"seed": seed, "steps": steps, "lambda": weight, "round": t + 1}
            size = round(STEPS[steps](t), 4)
            lines.append({**named, "step": size, "norm": round(float(np.mean(found)), 5)})
        for client in clients:
            client.step(STEPS[steps](t))
    return lines


def main() -> None:
    """Measure, write the results and print them."""
    torch.set_num_threads(1)
    lines = [
        line
        for seed in range(3)
        for weight in (2.0,)
        for steps in STEPS
        for line in norms(seed, steps, weight)
    ]
    made_by = {"made by": maker(provenance("cpu"))}
    write_measurements("perfed-ckt/gradient-norm", [line | made_by for line in lines])
    for line in lines:
        print(line)


if __name__ == "__main__":
    main()
