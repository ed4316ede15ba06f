"""Similarity of the data of clients in the same cluster.

    python docs/results/perfed-ckt/cluster_classes.py OUTPUT.json RUN...

writes, for runs of PerFed-CKT, how much of their classes two clients share, in the mean over rounds
and pairs: of one cluster, of two clusters, and of the most alike pair that each client has.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tables import markdown

from fedkd_flwr import Run, load_run
from fedkd_flwr.plots import label_counts

TOLD = ("partition", "fraction-train", "public-dataset")
"""Settings that distinguish the runs."""
KINDS = {"one_cluster": "in one cluster", "two_clusters": "in two", "nearest": "its most alike"}
"""Pairs of clients, and their headings."""


def overlaps(run: Run) -> NDArray[np.float64]:
    """Return the share of classes that two clients have in common, (N, N).

    That is the sum over classes of the smaller of the two clients' parts of their samples: 1 where
    the labels are distributed alike, 0 where no class is common.
    """
    counts = label_counts(run).to_numpy()
    parts = counts / counts.sum(axis=1, keepdims=True)
    return np.minimum(parts[:, None], parts[None]).sum(axis=2)


def by_cluster(run: Run) -> dict[str, float]:
    """Return the mean overlap of pairs, by whether they share a cluster."""
    shared = overlaps(run)
    others = ~np.eye(len(shared), dtype=bool)
    clusters = run.matrices["clusters"]
    present = (clusters >= 0)[:, :, None] & (clusters >= 0)[:, None] & others
    together = clusters[:, :, None] == clusters[:, None]
    everywhere = np.broadcast_to(shared, present.shape)
    return {
        "one_cluster": round(float(everywhere[present & together].mean()), 4),
        "two_clusters": round(float(everywhere[present & ~together].mean()), 4),
        "nearest": round(float(np.where(others, shared, 0).max(axis=1).mean()), 4),
    }


def table(file: Path) -> str:
    """Return one row per combination of settings: means over its runs."""
    runs: list[dict[str, Any]] = json.loads(file.read_text())
    rows = []
    for choice in dict.fromkeys(tuple(run["settings"].values()) for run in runs):
        own = [run for run in runs if tuple(run["settings"].values()) == choice]
        means = (np.mean([run[kind] for run in own]) for kind in KINDS)
        rows.append([*map(str, choice), *(f"{mean:.2f}" for mean in means)])
    return markdown([*(f"`{name}`" for name in TOLD), *(f"{h}:" for h in KINDS.values())], rows)


def main(output: Path, paths: list[str]) -> None:
    """Write one line per run."""
    runs = map(load_run, paths)
    lines = [
        json.dumps(
            {
                "seed": run.config["seed"],
                "settings": {name: run.config[name] for name in TOLD},
                **by_cluster(run),
            }
        )
        for run in runs
    ]
    output.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
