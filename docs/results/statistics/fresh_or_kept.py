"""Evaluate personalized networks with kept and with fresh batch-normalization statistics.

    python docs/results/statistics/fresh_or_kept.py RUNS OUTPUT

RUNS is a folder of finished runs with ``batch-norm-statistics = "kept"`` and exported models. Each
client's model is evaluated on its test split twice: with the running averages that it kept, and
with fresh statistics of the client's own training images. Writes OUTPUT.json, one line a run.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fedkd_flwr import Run, load_model, load_run
from fedkd_flwr.config import read_config
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.training.loop import evaluate, refresh_statistics


def accuracies(run: Run) -> dict[str, Any]:
    """Return the mean accuracies of a run's clients with both kinds of statistics."""
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
    return {
        "model": run.config["models"],
        "method": run.config["strategy"],
        "seed": run.config["seed"],
        "kept": sum(kept) / len(kept),
        "fresh": sum(fresh) / len(fresh),
        "kept_by_client": kept,
        "fresh_by_client": fresh,
    }


def table(file: Path) -> str:
    """Return the accuracies in percent, mean over seeds and the gain of each seed."""
    results = json.loads(file.read_text())
    lines = ["| model | method | kept | fresh | gain of fresh by seed |", "|---|---|---:|---:|---|"]
    for (model, method), runs in pd.DataFrame(results).groupby(["model", "method"]):
        gains = ", ".join(f"{100 * gain:+.1f}" for gain in runs["fresh"] - runs["kept"])
        kept, fresh = 100 * runs["kept"].mean(), 100 * runs["fresh"].mean()
        lines.append(f"| {model} | {method} | {kept:.1f} | {fresh:.1f} | {gains} |")
    return "\n".join(lines) + "\n"


def seeds(file: Path) -> str:
    """Return the seeds."""
    return ", ".join(map(str, sorted({result["seed"] for result in json.loads(file.read_text())})))


def count(file: Path) -> str:
    """Return in how many of all runs fresh statistics are better."""
    gains = _gains(file)
    return f"{sum(gain > 0 for gain in gains)} of {len(gains)}"


def extremes(file: Path) -> str:
    """Return the smallest and the largest gain of fresh statistics in points."""
    gains = _gains(file)
    return f"{min(gains):+.1f} to {max(gains):+.1f}"


def _gains(file: Path) -> list[float]:
    return [100 * (run["fresh"] - run["kept"]) for run in json.loads(file.read_text())]


def main(folder: Path, output: Path) -> None:
    """Evaluate the runs of a folder and write the results."""
    torch.set_num_threads(1)
    runs = [load_run(path.parent) for path in sorted(folder.glob("*/summary.json"))]
    results = [accuracies(run) for run in runs]
    results.sort(key=lambda result: (result["model"], result["method"], result["seed"]))
    output.parent.mkdir(parents=True, exist_ok=True)
    text = "[\n" + ",\n".join(json.dumps(result) for result in results) + "\n]\n"
    output.with_suffix(".json").write_text(text)
    print(table(output.with_suffix(".json")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
