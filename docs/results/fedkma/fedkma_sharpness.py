"""Effect of sharpness on FedKMA's matrix M, for clients in groups that share their classes.

    python docs/results/fedkma/fedkma_sharpness.py RUNS OUTPUT

RUNS is a folder of finished runs on ``k-classes-grouped``. Writes OUTPUT.json: for every run of
``fedkma`` or ``fednas``, round by round, the mean weight of another client of the same group, that
of a client of another group, and what a row of M gives to other groups in all. Draws the last
and the accuracy over sharpness, OUTPUT.png, and the first seed's M of the last round, OUTPUT-*.png.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from fedkd_flwr import Run, load_run
from fedkd_flwr.config import read_config
from fedkd_flwr.data.clients import client_indices
from fedkd_flwr.data.sources import load_labels
from fedkd_flwr.plots import plot_sharing


def weights_by_group(run: Run) -> dict[str, Any]:
    """Return the mean weights of M within and across groups, round by round, and the accuracy."""
    plan = read_config(run.config).run.data_plan
    labels = load_labels(plan.settings.dataset, plan.settings.data_root)
    classes = [frozenset(labels[indices].tolist()) for indices in client_indices(plan)]
    same = np.array([[mine == theirs for theirs in classes] for mine in classes])
    others = ~np.eye(len(classes), dtype=bool)
    within, across = (
        np.array([sharing[pairs].mean() for sharing in run.matrices["sharing"]])
        for pairs in (same & others, ~same)
    )
    outside = across * (~same).sum(axis=1).mean()
    evaluated = run.rounds["accuracy_mean"].dropna()
    return {
        "strategy": run.config["strategy"],
        "as-printed": run.config["fedkma.as-printed"],
        "sharpness": run.config["fedkma.sharpness"],
        "seed": run.config["seed"],
        "within": within.round(4).tolist(),
        "across": across.round(4).tolist(),
        "outside": outside.round(4).tolist(),
        "accuracy_mean": evaluated.round(4).tolist(),
    }


def last_rounds(results: list[dict[str, Any]]) -> pd.DataFrame:
    """Return every run's weights and accuracy after the last round."""
    columns = ("within", "across", "outside", "accuracy_mean")
    return pd.DataFrame(
        {**result, **{column: result[column][-1] for column in columns}} for result in results
    )


def table(file: Path, published: Path) -> str:
    """Return one row per kind of weights: the weights in M and the accuracy of each seed.

    Parameters
    ----------
    file : Path
        What `main` wrote.
    published : Path
        The same runs and those of `local`, by `publish_runs.py`.
    """
    results = last_rounds(json.loads(file.read_text())).sort_values("seed")
    order = ["strategy", "as-printed", "sharpness"]
    rows = [
        [
            _kind(*choice),
            ", ".join(f"{weight:.2f}" for weight in runs["within"]),
            ", ".join(f"{weight:.1%}" for weight in runs["outside"]),
            ", ".join(f"{100 * mean:.1f}" for mean in runs["accuracy_mean"]),
        ]
        for choice, runs in results.groupby(order)
    ]
    local = [
        100 * run["accuracy_mean"][-1]
        for run in json.loads(published.read_text())["runs"]
        if run["settings"]["strategy"] == "local"
    ]
    rows.append(["`local`", "", "", ", ".join(f"{mean:.1f}" for mean in local)])
    headings = ["weights", "within a group, a client", "outsiders, in all", "accuracy, by seed"]
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _kind(strategy: str, as_printed: bool, sharpness: float) -> str:
    if strategy == "fednas":
        return "uniform mean (`fednas`)"
    if as_printed:
        return "Eq. 11 as printed"
    return f"sharpness {sharpness:g}" + (", the paper" if sharpness == 1 else "")


def draw(results: list[dict[str, Any]], figure_path: Path) -> None:
    """Plot the weight of other groups and the accuracy over sharpness, one line per seed."""
    table = last_rounds(results)
    sharpened = table[(table["strategy"] == "fedkma") & ~table["as-printed"]]
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for column, axis in zip(("outside", "accuracy_mean"), axes, strict=True):
        for seed, runs in sharpened.sort_values("sharpness").groupby("seed"):
            axis.plot(runs["sharpness"], 100 * runs[column], marker="o", label=f"seed {seed}")
        axis.set(xscale="log", xlabel="sharpness (1 is the paper)")
        axis.set_xticks(sorted(set(sharpened["sharpness"])))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
    axes[0].set(ylabel="weight of other groups in a row, percent", ylim=(0, None))
    axes[1].set(ylabel="mean accuracy, percent")
    axes[1].legend()
    figure.savefig(figure_path, dpi=120)


def main(folder: Path, output: Path) -> None:
    """Write the results and the figures of a folder of runs."""
    output.parent.mkdir(parents=True, exist_ok=True)
    runs = [load_run(path.parent) for path in sorted(folder.glob("*/summary.json"))]
    runs = [run for run in runs if "sharing" in run.matrices]
    results = [weights_by_group(run) for run in runs]
    lines = ",\n".join(json.dumps(result) for result in results)
    output.with_suffix(".json").write_text(f"[\n{lines}\n]\n")
    draw(results, output.with_suffix(".png"))
    first_seed = min(result["seed"] for result in results)
    for run, result in zip(runs, results, strict=True):
        if result["seed"] == first_seed and result["strategy"] == "fedkma":
            kind = "as-printed" if result["as-printed"] else f"{result['sharpness']:g}"
            order = range(run.config["num-clients"])
            figure = plot_sharing(run, order=order)
            figure.savefig(output.with_name(f"{output.name}-{kind}.png"), dpi=120)
    kinds = last_rounds(results).groupby(["strategy", "as-printed", "sharpness"])
    print(kinds[["within", "across", "outside", "accuracy_mean"]].mean().round(3).to_string())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
