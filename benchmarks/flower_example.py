"""Compare this project's FedAvg client with one written like Flower's PyTorch examples.

The examples process samples one by one in every epoch: a Hugging Face data set decodes an image,
a transform converts it to a tensor, and a DataLoader collects a batch. Both clients train and
evaluate the same network, on the same number of samples and batches.
"""

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet
import torch
from flwr.app import Context, RecordDict
from flwr.client import NumPyClient
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.bare import TRAINING
from benchmarks.images import SOURCE, settings_for, write_random_images
from benchmarks.pairs import Result, Task, time_alternately
from fedkd_flwr.client_app import build_client
from fedkd_flwr.config import read_config
from fedkd_flwr.models.build import build_model
from fedkd_flwr.server_app import initial_model

SAMPLES = 800
"""Samples of a client: three quarters to train on, the rest to test on."""


class ExampleClient(NumPyClient):
    """A client as in Flower's examples.

    Parameters
    ----------
    model : nn.Module
        Its parameters are replaced by those that the server sends.
    train_loader, test_loader : DataLoader
        Batches of the client's own samples.
    """

    def __init__(
        self, model: nn.Module, train_loader: DataLoader[Any], test_loader: DataLoader[Any]
    ) -> None:
        self.model = model
        self.train_loader = train_loader
        self.test_loader = test_loader

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Train the received model and return it."""
        self.receive(parameters)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(
            self.model.parameters(), lr=TRAINING.learning_rate, momentum=TRAINING.momentum
        )
        self.model.train()
        running_loss = 0.0
        for _ in range(TRAINING.local_epochs):
            for batch in self.train_loader:
                optimizer.zero_grad()
                loss = criterion(self.model(batch["image"]), batch["label"])
                loss.backward()
                optimizer.step()
                running_loss += loss.item()
        trained = [tensor.numpy() for tensor in self.model.state_dict().values()]
        return trained, len(self.train_loader), {"train-loss": running_loss}

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Evaluate the received model."""
        self.receive(parameters)
        criterion = nn.CrossEntropyLoss()
        self.model.eval()
        correct, loss = 0, 0.0
        with torch.no_grad():
            for batch in self.test_loader:
                outputs = self.model(batch["image"])
                loss += criterion(outputs, batch["label"]).item()
                correct += (outputs.argmax(dim=1) == batch["label"]).sum().item()
        return loss, len(self.test_loader), {"correct": correct}

    def receive(self, parameters: list[NDArray[Any]]) -> None:
        """Load the received parameters into the model."""
        names = self.model.state_dict()
        state = OrderedDict(
            (name, torch.tensor(array)) for name, array in zip(names, parameters, strict=True)
        )
        self.model.load_state_dict(state)


def measure() -> Iterator[Result]:
    """Measure one client's training and evaluation in a round."""
    with TemporaryDirectory() as folder:
        file = write_random_images(Path(folder), SAMPLES)
        yield time_alternately(
            "mlp as in Flower's examples",
            example_round("mlp", file),
            "this project's FedAvg client",
            own_round("mlp", Path(folder)),
            at_least=4,
        )


def example_round(model: str, file: Path) -> Task:
    """Return a task in which the example's client trains and evaluates."""
    import datasets  # deferred, like torchvision: they take seconds to import
    from torchvision.transforms import Compose, Normalize, ToTensor

    transform = Compose([ToTensor(), Normalize((0.5,), (0.5,))])

    def apply_transform(batch: dict[str, Any]) -> dict[str, Any]:
        batch["image"] = [transform(image) for image in batch["image"]]
        return batch

    table = pyarrow.parquet.read_table(file)
    own = datasets.Dataset.from_dict(table.to_pydict()).cast_column("image", datasets.Image())
    parts = own.train_test_split(test_size=0.25, seed=42).with_transform(apply_transform)
    network = build_model(model, SOURCE.shape, SOURCE.classes)
    client = ExampleClient(
        network,
        DataLoader(parts["train"], batch_size=TRAINING.batch_size, shuffle=True),
        DataLoader(parts["test"], batch_size=TRAINING.batch_size),
    )
    initial = [tensor.numpy().copy() for tensor in network.state_dict().values()]

    def run_round() -> None:
        trained, *_ = client.fit(initial, {})
        client.evaluate(trained, {})

    return run_round


def own_round(model: str, root: Path) -> Task:
    """Return a task in which this project's FedAvg client serves the messages of a round."""
    further = {"strategy": "fedavg", "public-dataset": "none"}
    configuration = read_config(settings_for(root, model, 1, **further))
    run_config = configuration.flat()
    initial = initial_model(configuration)
    config: dict[str, Any] = {"names": list(initial), "server-round": 1, "phase": "train"}

    def client() -> NumPyClient:
        return build_client(
            Context(1, 1, {"partition-id": 0, "trust-server": True}, RecordDict(), run_config)
        )

    def run_round() -> None:
        trained, *_ = client().fit(list(initial.values()), config)
        client().evaluate(trained, config)

    return run_round
