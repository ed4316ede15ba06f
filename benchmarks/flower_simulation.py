"""FedAvg in plain Flower, simulated by Flower under Ray: no code of this project trains or tests.

Samples are mapped from files, so that a client reads its own in no time.
"""

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import published
from benchmarks.published import Figures, figures, logistic_regression


class FedAvgWithTests(FedAvg):
    """FedAvg that tests the model of every `TEST_EVERY`-th round on all clients."""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a test."""
        if server_round % published.TEST_EVERY:
            return []
        return super().configure_evaluate(server_round, arrays, config, grid)


def run_flower(folder: Path, rounds: int) -> Figures:
    """Simulate with one core per client; see `benchmarks.published.figures`."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    clients = len(mapped(folder, "train_labels"))
    ends: list[float] = []
    tests: dict[int, MetricRecord] = {}
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvgWithTests(fraction_train=published.A_ROUND / clients)
        initial = ArrayRecord(logistic_regression().state_dict())
        result = strategy.start(
            grid,
            initial,
            num_rounds=rounds,
            evaluate_fn=lambda *_: ends.append(time.perf_counter()),
        )
        tests.update(result.evaluate_metrics_clientapp)

    run_simulation(
        server_app,
        client_app_for(folder),
        num_supernodes=clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"log_to_driver": False, "logging_level": logging.ERROR},
        },
    )
    return figures(
        ends[1:], cast(float, tests[max(tests)]["accuracy"])
    )  # the first is before round 1


def client_app_for(folder: Path) -> ClientApp:
    """Return a ClientApp that trains the received model for an epoch, or tests it."""
    client_app = ClientApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        samples, model = own_samples(folder, "train", context), received(message)
        loss = train_epoch(
            model, DataLoader(samples, batch_size=published.BATCH_SIZE, shuffle=True)
        )
        metrics = MetricRecord({"loss": loss, "num-examples": len(samples)})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @client_app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        images, labels = own_samples(folder, "test", context).tensors
        with torch.inference_mode():
            correct = received(message)(images).argmax(dim=1) == labels
        metrics = MetricRecord(
            {"accuracy": float(correct.float().mean()), "num-examples": len(labels)}
        )
        return Message(content=RecordDict({"metrics": metrics}), reply_to=message)

    return client_app


def received(message: Message) -> nn.Module:
    """Return the model of a message."""
    torch.set_num_threads(1)
    model = logistic_regression()
    arrays = message.content["arrays"]
    assert isinstance(arrays, ArrayRecord)
    model.load_state_dict(arrays.to_torch_state_dict())
    return model


def own_samples(folder: Path, split: str, context: Context) -> TensorDataset:
    """Return the images and labels of the client that a context belongs to."""
    own = int(context.node_config["partition-id"])
    images, labels = (mapped(folder, f"{split}_{part}")[own] for part in ("images", "labels"))
    return TensorDataset(torch.from_numpy(images.copy()), torch.from_numpy(labels.copy()))


def train_epoch(model: nn.Module, batches: DataLoader[tuple[Tensor, ...]]) -> float:
    """Train for an epoch and return the loss of the last batch."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=published.LEARNING_RATE, weight_decay=published.WEIGHT_DECAY
    )
    for images, labels in batches:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
    return loss.item()


def mapped(folder: Path, part: str) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a part of all clients' samples, read as it is used."""
    return np.load(folder / f"{part}.npy", mmap_mode="r")
