"""Measure what insiders cost the other clients of methods that average parameters.

Runs FedAvg, FedPer, SCAFFOLD and KT-pFL on parameters on digits. One or two of ten clients
claim 10⁹ samples, send one reply of 9·10⁷ in round 2, or return ten times the negative update
in every round. Prints the mean accuracy of the honest clients, without the limits, with the default
limits, and with a robust average besides.

    PYTHONPATH=docs/results python docs/results/robustness/insiders.py [SEED ...] [STRATEGY ...]

The results are written to `measurements.jsonl`, in place of earlier ones of the same strategies.
"""

import itertools
import logging
import sys
import tempfile
from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from measurements import FILE, read_measurements, write_measurements

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import read_config
from fedkd_flwr.engines import flower_log_level
from fedkd_flwr.grids.in_process import InProcessGrid
from fedkd_flwr.server_app import serve
from strategies.core.replies import TooFewRepliesError

NAME = "robustness/insiders"
NUM_CLIENTS = 10
HUGE = 9e7
SETTINGS = {
    "dataset": "digits",
    "max-samples": 900,
    "held-out-size": 200,
    "partition": "dirichlet",
    "alpha": 1.0,
    "client-split": "40/0/60",
    "models": "mlp",
    "num-clients": NUM_CLIENTS,
    "num-server-rounds": 20,
    "evaluate-every": 20,
    "local-epochs": 2,
    "batch-size": 16,
    "learning-rate": 0.05,
    "momentum": 0.9,
    "torch-threads": 1,
    "device": "cpu",
}
STRATEGIES = ("fedavg", "fedper", "scaffold", "kt-pfl-params")
DEFENSES = {
    "none": {"weight-cap": 0.0, "update-cap": 0.0},
    "limits": {},
    "limits, median": {"mixing": "median"},
    "limits, trimmed mean": {"mixing": "trimmed-mean"},
}
CHANGED_LATER = 2
"""The round in which the single huge reply is sent."""

Attack = Callable[[Message, Message], None]


def honest(message: Message, reply: Message) -> None:
    """Leave the reply unchanged."""


def claims(message: Message, reply: Message) -> None:
    """Claim 10⁹ training samples."""
    if message.metadata.message_type == "query":
        numbers = dict(reply.content.metric_records["metrics"])
        reply.content["metrics"] = MetricRecord({**numbers, "num-examples": 10**9})


def huge(message: Message, reply: Message) -> None:
    """Fill the parameters with 9·10⁷ in one round."""
    if _round_of(message) == CHANGED_LATER:
        _replace(message, reply, lambda sent, trained: np.full_like(trained, HUGE))


def flipped(message: Message, reply: Message) -> None:
    """Return ten times the negative update in every round."""
    _replace(message, reply, lambda sent, trained: sent - 10 * (trained - sent))


ATTACKS: dict[str, Attack] = {"claims": claims, "huge": huge, "flipped": flipped}


def _round_of(message: Message) -> int:
    return int(str(message.content.config_records["config"].get("server-round", 0)))


def _replace(
    message: Message,
    reply: Message,
    change: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> None:
    """Replace the parameters in a train reply."""
    if message.metadata.message_type != "train":
        return
    sent = {k: a.numpy() for k, a in message.content.array_records["arrays"].items()}
    arrays = {k: a.numpy() for k, a in reply.content.array_records["arrays"].items()}
    for kind in ("weights", "control"):
        if kind in arrays:
            start = sent[kind] if kind == "weights" else np.zeros_like(arrays[kind])
            arrays[kind] = change(start, arrays[kind]).astype(np.float32)
    reply.content["arrays"] = ArrayRecord({k: Array(a) for k, a in arrays.items()})


def accuracy_of_honest(settings: dict, insiders: int, attack: Attack) -> float:
    """Run in this process, and return the mean accuracy of the clients that are no insiders.

    A run without a valid reply stops, and counts as 0.
    """

    def serve_message(message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        if context.node_config["partition-id"] < insiders:
            attack(message, reply)
        return reply

    with tempfile.TemporaryDirectory() as folder, flower_log_level(logging.ERROR):
        configuration = read_config({**settings, "output-dir": f"{folder}/run"})
        grid = InProcessGrid(serve_message, NUM_CLIENTS, configuration.flat())
        try:
            clients = serve(grid, configuration).clients
        except TooFewRepliesError:
            return 0.0
    last = clients[clients["round"] == clients["round"].max()].dropna(subset="accuracy")
    return round(float(last[last["partition_id"] >= insiders]["accuracy"].mean()), 4)


def main(seeds: list[int], strategies: list[str]) -> None:
    """Run all combinations, print one line for each, and write the results."""
    attacks: list[tuple[str, int, Attack]] = [("honest", 0, honest)]
    attacks += [(name, n, attack) for name, attack in ATTACKS.items() for n in (1, 2)]
    lines = []
    for strategy, defense, (name, insiders, attack) in itertools.product(
        strategies, DEFENSES, attacks
    ):
        for seed in seeds:
            settings = {**SETTINGS, **DEFENSES[defense], "strategy": strategy, "seed": seed}
            line = {"strategy": strategy, "defense": defense, "attack": name, "insiders": insiders}
            accuracy = accuracy_of_honest(settings, insiders, attack)
            lines.append({**line, "seed": seed, "accuracy": accuracy})
            print(lines[-1], flush=True)
    earlier = read_measurements(NAME) if NAME in FILE.read_text() else []
    kept = [line for line in earlier if line["strategy"] not in strategies]
    write_measurements(NAME, [*kept, *lines])


if __name__ == "__main__":
    words = sys.argv[1:]
    main(
        [int(word) for word in words if word.isdecimal()] or [0, 1, 2],
        [word for word in words if not word.isdecimal()] or list(STRATEGIES),
    )
