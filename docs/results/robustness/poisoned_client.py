"""Measure what one client with poisoned predictions costs the others, with mean and median.

Runs KT-pFL, FedMD and PerFed-CKT on digits with one client that is honest, silent, or sends
one-hot predictions of wrong classes in every round. Prints the mean accuracy of the others.

    PYTHONPATH=docs/results python docs/results/robustness/poisoned_client.py [SEED ...]

The results are written to `measurements.jsonl`.
"""

import itertools
import logging
import sys
import tempfile
from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from measurements import write_measurements

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import read_config
from fedkd_flwr.engines import flower_log_level
from fedkd_flwr.grids.in_process import InProcessGrid
from fedkd_flwr.server_app import serve

BYZANTINE_CLIENT = 1
SETTINGS = {
    "dataset": "digits",
    "max-samples": 900,
    "held-out-size": 200,
    "public-size": 200,
    "partition": "dirichlet",
    "alpha": 1.0,
    "client-split": "40/0/60",
    "models": "mlp",
    "num-clients": 10,
    "num-server-rounds": 20,
    "evaluate-every": 20,
    "local-epochs": 2,
    "batch-size": 16,
    "learning-rate": 0.05,
    "momentum": 0.9,
    "torch-threads": 1,
    "device": "cpu",
    "kt-pfl.distillation-learning-rate": 0.05,
    "kt-pfl.temperature": 3.0,
    "kt-pfl.t-squared": True,
}
TABLES = {"kt-pfl": "kt-pfl", "fedmd": "kt-pfl", "perfed-ckt": "perfed-ckt"}


def honest(reply: Message) -> None:
    """Leave the reply unchanged."""


def silent(reply: Message) -> None:
    """Drop the reply."""
    raise TimeoutError("silent")


def poisoned(reply: Message) -> None:
    """Replace each prediction by a one-hot vector of the class after the most likely one."""
    records = reply.content.array_records["arrays"]
    predictions = records["predictions"].numpy()
    classes = predictions.shape[1]
    wrong = np.eye(classes, dtype=np.float32)[(predictions.argmax(axis=1) + 1) % classes]
    reply.content["arrays"] = ArrayRecord({"predictions": Array(wrong)})


def accuracy_of_others(settings: dict, behave: Callable[[Message], None]) -> float:
    """Run in this process, and return the mean accuracy of all clients but the Byzantine one."""

    def serve_message(message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        is_train = message.metadata.message_type == "train"
        if is_train and context.node_config["partition-id"] == BYZANTINE_CLIENT:
            behave(reply)
        return reply

    with tempfile.TemporaryDirectory() as folder, flower_log_level(logging.ERROR):
        configuration = read_config({**settings, "output-dir": f"{folder}/run"})
        grid = InProcessGrid(
            serve_message, configuration.run.plan.num_clients, configuration.flat()
        )
        clients = serve(grid, configuration).clients
    last = clients[clients["round"] == clients["round"].max()].dropna(subset="accuracy")
    return round(float(last[last["partition_id"] != BYZANTINE_CLIENT]["accuracy"].mean()), 4)


def main(seeds: list[int]) -> None:
    """Run all combinations, print one line for each, and write the results."""
    alone = ("local", "-", honest)
    attacked = itertools.product(TABLES, ("mean", "median"), (honest, silent, poisoned))
    lines = []
    for (strategy, mixing, behave), seed in itertools.product([alone, *attacked], seeds):
        settings = {**SETTINGS, "strategy": strategy, "seed": seed}
        if strategy in TABLES:
            settings[f"{TABLES[strategy]}.mixing"] = mixing
        line = {"strategy": strategy, "mixing": mixing, "client": behave.__name__, "seed": seed}
        lines.append({**line, "accuracy": accuracy_of_others(settings, behave)})
        print(lines[-1], flush=True)
    write_measurements("robustness/digits", lines)


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]] or [0, 1, 2])
