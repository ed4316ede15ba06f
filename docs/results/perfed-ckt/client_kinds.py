"""Accuracy by kind of client on a split with strong label skew.

    python docs/results/perfed-ckt/client_kinds.py OUTPUT.json RUN...

writes, for each run, how many clients were filled up to the least size, hold nearly one class,
or hold several, how often a client of each kind was drawn, and their mean accuracy in the end.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tables import markdown

from fedkd_flwr import Run, load_run
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.plots import label_counts

TOLD = ("strategy", "learning-rate", "perfed-ckt.regularization-weight")
"""Settings that distinguish the runs."""

ONE_CLASS = 0.95
"""Share of its largest class from which a client counts as having a single class."""

KINDS = {
    "filled_up": "filled up from all classes",
    "one_class": "one class",
    "several": "several classes",
}
"""Kinds of clients, and their headings."""


def kinds_of(run: Run) -> dict[str, NDArray[np.bool_]]:
    """Return which clients are of each kind, (N,)."""
    counts = label_counts(run).to_numpy()
    sizes = counts.sum(axis=1)
    is_filled_up = sizes <= run.config["minimum-size"]
    is_of_one = (counts.max(axis=1) >= ONE_CLASS * sizes) & ~is_filled_up
    return {
        "filled_up": is_filled_up,
        "one_class": is_of_one,
        "several": ~is_filled_up & ~is_of_one,
    }


def by_kind(run: Run) -> dict[str, dict[str, float]]:
    """Return for each kind the number of clients, how often one was sampled, and the accuracy."""
    drawn = run.clients["train_loss"].notna().groupby(run.clients["partition_id"]).sum().to_numpy()
    last = run.clients[run.clients["round"] == run.clients["round"].max()]
    accuracy = last.sort_values("partition_id")["accuracy"].to_numpy()
    return {
        kind: {
            "clients": int(own.sum()),
            "drawn": round(float(drawn[own].mean()), 2),
            "accuracy": round(float(accuracy[own].mean()), 4),
        }
        for kind, own in kinds_of(run).items()
    }


def table(file: Path) -> str:
    """Return one row per combination of settings: means over its runs, in percent."""
    runs: list[dict[str, Any]] = json.loads(file.read_text())
    rows = []
    for choice in dict.fromkeys(tuple(run["settings"].values()) for run in runs):
        own = [run for run in runs if tuple(run["settings"].values()) == choice]
        means = (100 * np.mean([run["kinds"][kind]["accuracy"] for run in own]) for kind in KINDS)
        rows.append([f"`{choice[0]}`", *map(str, choice[1:]), *(f"{mean:.1f}" for mean in means)])
    headings = ["method", *(f"`{name}`" for name in TOLD[1:])]
    return markdown([*headings, *(f"{heading}:" for heading in KINDS.values())], rows)


def clients(file: Path) -> str:
    """Return the number of clients of each kind by seed, for a sentence."""
    runs: list[dict[str, Any]] = json.loads(file.read_text())
    seeds = {run["seed"]: run["kinds"] for run in runs}
    counts = (
        " and ".join(str(seeds[seed][kind]["clients"]) for seed in sorted(seeds)) for kind in KINDS
    )
    told = zip(counts, KINDS.values(), strict=True)
    return ", ".join(f"{count} ({heading})" for count, heading in told)


def draws(file: Path, strategy: str, kind: str) -> str:
    """Return how often a client of a kind was sampled, by seed, for a sentence."""
    runs: list[dict[str, Any]] = json.loads(file.read_text())
    own = (run for run in runs if run["settings"]["strategy"] == strategy)
    means = {run["seed"]: run["kinds"][kind]["drawn"] for run in own}
    return " and ".join(f"{means[seed]:.1f}" for seed in sorted(means))


def main(output: Path, paths: list[str]) -> None:
    """Write one line per run."""
    lines = [
        json.dumps(
            {
                "seed": run.config["seed"],
                "settings": {name: defining_settings(run.config).get(name, "-") for name in TOLD},
                "kinds": by_kind(run),
            }
        )
        for run in map(load_run, paths)
    ]
    output.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
