"""What was measured beside accuracy and traffic, in `measurements.jsonl`: one line a measurement.

    python docs/results/measurements.py KIND NAME RUN...

measures run directories and replaces the lines of NAME, such as ``transfer/kt-pfl-weights``. KIND:

- ``weights``: a client's mean weight for itself and for others, by the classes that they share,
  after the last round (KT-pFL's coefficients, FedKMA's matrix M).
- ``kinds``: clients that were filled up, of one class, and of several: how many, how often sampled,
  how accurate.
- ``overlap``: how much of their classes two clients of a cluster share.
- ``likeness``: a client's mean weight for itself and for another in FedKMA's matrix M, and how the
  weights of others follow the classes that two clients share.
- ``moments``: accuracy after the last round as evaluated, and after the local training before it.
- ``statistics``: accuracy of exported models with kept and with fresh batch-normalization
  statistics.
- ``derived``: accuracy of a search's supernets, and of the network derived from each, trained from
  new weights on the client's own data for as many epochs.
- ``pairs``: PersFL's mean test accuracy for each pair of lambda and T, a line for each lambda.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from runs import maker
from scipy.stats import spearmanr

from fedkd_flwr import Run, load_model, load_run
from fedkd_flwr.analysis.genotypes import client_genotypes
from fedkd_flwr.analysis.settings import varied_settings
from fedkd_flwr.config import read_config
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.models.darts.fixed import darts_fixed
from fedkd_flwr.plots import label_counts
from fedkd_flwr.runs import recorded_config
from fedkd_flwr.training.loop import (
    epoch_batches,
    evaluate,
    gathered,
    refresh_statistics,
    seeded,
    train_on,
)
from fedkd_flwr.training.losses import cross_entropy
from fedkd_flwr.training.optimizers import build_optimizer
from strategies.core.randomness import random_generator
from strategies.persfl import PAIRS

FILE = Path(__file__).parent / "measurements.jsonl"
ONE_CLASS = 0.95
"""Share of its largest class from which a client counts as having a single class."""


def read_measurements(name: str) -> list[dict[str, Any]]:
    """Return the lines of a name.

    Raises
    ------
    ValueError
        If there are none.
    """
    lines = map(json.loads, FILE.read_text().splitlines())
    found = [line for line in lines if line.pop("of") == name]
    if not found:
        raise ValueError(f"{FILE.name} has nothing of {name}.")
    return found


def write_measurements(name: str, lines: Iterable[dict[str, Any]]) -> None:
    """Write the lines of a name in place of its earlier ones; names are in alphabetical order."""
    kept = [line for line in FILE.read_text().splitlines() if json.loads(line)["of"] != name]
    new = [json.dumps({"of": name, **line}) for line in lines]
    merged = sorted([*kept, *new], key=lambda line: json.loads(line)["of"])
    FILE.write_text("".join(f"{line}\n" for line in merged))


# ---- Kinds of measurements -------------------------------------------------------------


def weights(run: Run) -> dict[str, float]:
    """Return the mean weights of the last round, by shared classes, and the share of outsiders."""
    holds = (label_counts(run) > 0).to_numpy().astype(int)
    shared = holds @ holds.T
    matrices = run.matrices
    matrix = matrices["coefficients" if "coefficients" in matrices else "sharing"][-1]
    others = ~np.eye(len(holds), dtype=bool)
    counts = np.unique(shared[others])[::-1]
    means = {count: float(matrix[others & (shared == count)].mean()) for count in counts}
    least = float(means[counts[-1]])
    return {
        "itself": round(float(matrix.diagonal().mean()), 3),
        **{f"with {n} shared classes": float(f"{mean:.3g}") for n, mean in means.items()},
        "outside": round(float(np.where(shared == counts[-1], matrix, 0).sum(axis=1).mean()), 4),
        **({"ratio": float(f"{means[counts[0]] / least:.3g}")} if least else {}),
    }


def kinds(run: Run) -> dict[str, float]:
    """Return the number of clients of each kind, how often one was sampled, and its accuracy."""
    counts = label_counts(run).to_numpy()
    sizes = counts.sum(axis=1)
    is_filled_up = sizes <= run.config["minimum-size"]
    is_of_one = (counts.max(axis=1) >= ONE_CLASS * sizes) & ~is_filled_up
    drawn = run.clients["train_loss"].notna().groupby(run.clients["partition_id"]).sum().to_numpy()
    last = run.clients[run.clients["round"] == run.clients["round"].max()]
    accuracy = last.sort_values("partition_id")["accuracy"].to_numpy()
    parts = {
        "filled up": is_filled_up,
        "one class": is_of_one,
        "several": ~is_filled_up & ~is_of_one,
    }
    return {
        f"{what} {kind}": value
        for kind, own in parts.items()
        for what, value in (
            ("clients", int(own.sum())),
            ("drawn", round(float(drawn[own].mean()), 2)),
            ("accuracy", round(float(accuracy[own].mean()), 4)),
        )
    }


def shared_parts(run: Run) -> NDArray[np.float64]:
    """Return how much of their classes two clients share, (N, N): 1 for equal parts of labels."""
    parts: NDArray[np.float64] = label_counts(run).to_numpy()
    parts = parts / parts.sum(axis=1, keepdims=True)
    return np.minimum(parts[:, None], parts[None]).sum(axis=2)


def overlap(run: Run) -> dict[str, float]:
    """Return the classes that two clients share: of one cluster, of two, and of the nearest pair.

    Two clients share the sum over classes of the smaller of their parts: 1 where labels are
    distributed alike, 0 where no class is common. Means are over rounds and pairs.
    """
    shared = shared_parts(run)
    others = ~np.eye(len(shared), dtype=bool)
    clusters = run.matrices["clusters"]
    present = (clusters >= 0)[:, :, None] & (clusters >= 0)[:, None] & others
    together = clusters[:, :, None] == clusters[:, None]
    everywhere = np.broadcast_to(shared, present.shape)
    return {
        "in one cluster": round(float(everywhere[present & together].mean()), 4),
        "in two": round(float(everywhere[present & ~together].mean()), 4),
        "its most alike": round(float(np.where(others, shared, 0).max(axis=1).mean()), 4),
    }


def likeness(run: Run) -> dict[str, float]:
    """Return M's mean weights after the last round, and the rank correlation over pairs.

    The correlation is between the weight of another client and the classes that both share.
    """
    matrix, shared = run.matrices["sharing"][-1], shared_parts(run)
    others = ~np.eye(len(shared), dtype=bool)
    return {
        "itself": round(float(matrix.diagonal().mean()), 4),
        "another": round(float(matrix[others].mean()), 4),
        "correlation": round(float(spearmanr(matrix[others], shared[others]).statistic), 4),
    }


def moments(run: Run) -> dict[str, float]:
    """Return the mean accuracy after the last round, and after local training, in percent.

    A method whose model is evaluated after local training anyway has one accuracy.
    """
    last = run.rounds.iloc[-1]
    found = {"accuracy": last["accuracy_mean"]}
    if "trained_accuracy_mean" in last:
        found["after_local_training"] = last["trained_accuracy_mean"]
    return {name: round(100 * float(value), 1) for name, value in found.items()}


def statistics(run: Run) -> dict[str, Any]:
    """Return the mean accuracy of exported models with both kinds of statistics."""
    plan = read_config(run.config).run.data_plan
    kept, fresh = [], []
    for n in range(run.config["num-clients"]):
        data = load_client(plan, n)
        model = load_model(run.path / "models" / f"{n}.safetensors")
        for found in (kept, fresh):
            if found is fresh:
                refresh_statistics(model, data.train_images)
            result = evaluate(model, data.test_images, data.test_labels)
            found.append(round(result.correct / result.total, 4))
    named = {"model": run.config["models"], "method": run.config["strategy"]}
    return {
        **named,
        "kept": float(np.mean(kept)),
        "fresh": float(np.mean(fresh)),
        "gain of fresh": float(np.mean(fresh) - np.mean(kept)),
    }


def derived(run: Run) -> dict[str, float]:
    """Return the mean test accuracy of the supernets, and of the networks derived from them.

    A derived network has the genotype of its client (FedKMA's Fig. 3) and the supernet's size. It
    starts from new weights and is trained on the client's own data, for the epochs of the run.
    """
    config = recorded_config(run).run
    training, space = config.training, config.models.search_space
    seed, epochs = config.plan.seed, config.plan.num_server_rounds * training.local_epochs
    accuracies = []
    for n, genotype in enumerate(client_genotypes(run)):
        data = load_client(config.data_plan, n)
        with seeded("cpu", seed, "derived-weights", n):
            model = darts_fixed(data.shape, data.classes, replace(space, genotype=genotype))
        optimizer = build_optimizer(
            "sgd",
            model.parameters(),
            training.learning_rate,
            training.momentum,
            training.weight_decay,
        )
        order = random_generator(seed, "derived-batches", n)
        positions = epoch_batches(len(data.train_images), training.batch_size, epochs, order)
        batches = gathered(positions, data.train_images, data.train_labels)
        train_on(model, cross_entropy, optimizer, batches)
        refresh_statistics(model, data.train_images)
        result = evaluate(model, data.test_images, data.test_labels)
        accuracies.append(result.correct / result.total)
    return {
        "supernet": round(float(run.rounds["accuracy_mean"].iloc[-1]), 4),
        "derived": round(float(np.mean(accuracies)), 4),
    }


def mean_by_pair(pairs: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the mean of a column over clients and seeds, by lambda (rows) and T (columns).

    At lambda = 0 T has no effect, and only one T is tried. Its value fills the whole row.
    """
    means = pairs.groupby(["lambda", "temperature"])[column].mean().unstack()
    if 0.0 in means.index:
        means.loc[0.0] = means.loc[0.0].max()
    return means


def pairs(run: Run) -> list[dict[str, float]]:
    """Return for each lambda the mean test accuracy over clients, by T (PersFL's Figs. 3 to 5)."""
    return [
        {"lambda": weight, **{f"T={t:g}": round(float(found), 4) for t, found in row.items()}}
        for weight, row in mean_by_pair(run.table(PAIRS), "accuracy").iterrows()
    ]


KINDS = {
    "weights": weights,
    "kinds": kinds,
    "overlap": overlap,
    "likeness": likeness,
    "moments": moments,
    "statistics": statistics,
    "derived": derived,
    "pairs": pairs,
}


def as_list(found: dict[str, Any] | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of a run; most kinds have one."""
    return found if isinstance(found, list) else [found]


def main(kind: str, name: str, paths: list[str]) -> None:
    """Measure the runs, which are told apart by seed and by the settings in which they differ."""
    runs = sorted((load_run(path) for path in paths), key=lambda run: run.config["seed"])
    told = varied_settings(runs)
    write_measurements(
        name,
        (
            {
                "seed": run.config["seed"],
                "strategy": run.config["strategy"],
                **{key: run.config[key] for key in told},
                **line,
                "made by": maker(run.description),
            }
            for run in runs
            for line in as_list(KINDS[kind](run))
        ),
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
