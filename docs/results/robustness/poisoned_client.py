"""Measure what one client with poisoned predictions costs the others, with mean and median.

Runs KT-pFL, FedMD and PerFed-CKT on digits with one client that is honest, silent, or sends
one-hot predictions of wrong classes in every round. Prints the mean accuracy of the others.

    python docs/results/robustness/poisoned_client.py OUTPUT.json [SEED ...]
"""

import itertools
import json
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message

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


def means(file: Path) -> dict[tuple[str, str], dict[str, float]]:
    """Return the others' accuracy in percent, by method and mixing, then by behavior."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in json.loads(file.read_text())["rows"]:
        accuracy = 100 * float(np.mean(row["accuracy"]))
        found.setdefault((row["strategy"], row["mixing"]), {})[row["client"]] = accuracy
    return found


def accuracy(file: Path, strategy: str, mixing: str, client: str) -> str:
    """Return one accuracy in percent."""
    return f"{means(file)[strategy, mixing][client]:.1f}"


def cost(file: Path, strategy: str, mixing: str) -> str:
    """Return the others' accuracy with poisoned predictions minus that with silence, in points."""
    own = means(file)[strategy, mixing]
    return f"{own['poisoned'] - own['silent']:+.1f}"


def table(file: Path) -> str:
    """Return one row per method and mixing: accuracy of the others by the client's behavior."""
    lines = [
        "| method | `mixing` | honest | silent | poisoned | poisoned - silent |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for (strategy, mixing), own in means(file).items():
        cells = [
            f"{own[name]:.1f}" if name in own else "" for name in ("honest", "silent", "poisoned")
        ]
        difference = cost(file, strategy, mixing) if "poisoned" in own else ""
        lines.append(f"| `{strategy}` | {mixing} | {' | '.join(cells)} | {difference} |")
    return "\n".join(lines) + "\n"


def main(output: Path, seeds: list[int]) -> None:
    """Run all combinations, print one line for each, and write the results."""
    rows = []
    local = [
        accuracy_of_others({**SETTINGS, "strategy": "local", "seed": seed}, honest)
        for seed in seeds
    ]
    rows.append({"strategy": "local", "mixing": "-", "client": "honest", "accuracy": local})
    print(rows[-1], flush=True)
    combinations = itertools.product(TABLES, ("mean", "median"), (honest, silent, poisoned))
    for strategy, mixing, behave in combinations:
        settings = {**SETTINGS, "strategy": strategy, f"{TABLES[strategy]}.mixing": mixing}
        accuracies = [accuracy_of_others({**settings, "seed": seed}, behave) for seed in seeds]
        rows.append(
            {
                "strategy": strategy,
                "mixing": mixing,
                "client": behave.__name__,
                "accuracy": accuracies,
            }
        )
        print(rows[-1], flush=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(map(json.dumps, rows))
    text = f'{{"settings": {json.dumps(SETTINGS)},\n"seeds": {seeds},\n"rows": [\n{lines}\n]}}\n'
    json.loads(text)
    output.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]] or [0, 1, 2])
