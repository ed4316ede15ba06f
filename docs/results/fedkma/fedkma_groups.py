"""Show whether FedKMA's matrix M finds the groups of clients that share their classes.

    python docs/results/fedkma/fedkma_groups.py OUTPUT.json RUN...

For finished runs on ``k-classes-grouped``, writes the mean weight that clients give each other
within a group and across groups, by round. Also draws M of the last round, next to OUTPUT.json.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedkd_flwr import load_run
from fedkd_flwr.config import read_config
from fedkd_flwr.data.clients import client_indices
from fedkd_flwr.data.sources import load_labels
from fedkd_flwr.plots import plot_sharing


def weights_by_group(path: str) -> dict[str, Any]:
    """Return the mean weights of M between different clients, within and across groups.

    Parameters
    ----------
    path : str
        A run directory of ``fedkma`` or ``fednas``.

    Returns
    -------
    dict
        ``within``, ``across`` and ``ratio``, one number a round, and the mean accuracies.
    """
    run = load_run(path)
    plan = read_config(run.config).run.data_plan
    labels = load_labels(plan.settings.dataset, plan.settings.data_root)
    classes = [frozenset(labels[indices].tolist()) for indices in client_indices(plan)]
    same = np.array([[mine == theirs for theirs in classes] for mine in classes])
    others = ~np.eye(len(classes), dtype=bool)
    within, across = (
        [float(sharing[pairs].mean()) for sharing in run.matrices["sharing"]]
        for pairs in (same & others, ~same)
    )
    return {
        "strategy": run.config["strategy"],
        "dataset": run.config["dataset"],
        "as-printed": run.config["fedkma.as-printed"],
        "classes": [sorted(int(label) for label in held) for held in classes],
        "within": [round(weight, 4) for weight in within],
        "across": [round(weight, 4) for weight in across],
        "ratio": [round(w / a, 2) for w, a in zip(within, across, strict=True)],
        "accuracy_mean": [round(float(mean), 4) for mean in run.rounds["accuracy_mean"]],
    }


def table(file: Path) -> str:
    """Return one row per run: M in the last round, the ratio by round, and the accuracy."""
    lines = [
        "| Eq. 11 | mean weight within a group, last round | across | ratio by round | accuracy |",
        "|---|---:|---:|---|---:|",
    ]
    (results,) = json.loads(file.read_text()).values()
    for run in results.values():
        cells = [
            "as printed" if run["as-printed"] else "weights fall with distance",
            f"{run['within'][-1]:.3f}",
            f"{run['across'][-1]:.3f}",
            ", ".join(f"{ratio:.2g}" for ratio in run["ratio"]),
            f"{100 * run['accuracy_mean'][-1]:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(output: Path, paths: list[str]) -> None:
    """Write the results of all runs as JSON, and draw a heat map for each."""
    output.parent.mkdir(parents=True, exist_ok=True)
    results = {Path(path).name: weights_by_group(path) for path in paths}
    for path in paths:
        run = load_run(path)
        order = range(run.config["num-clients"])
        plot_sharing(run, order=order).savefig(output.with_name(f"{run.path.name}.png"), dpi=120)
    output.write_text(json.dumps({Path(paths[0]).name: results}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
