"""Show whether clients with similar data have larger coefficients for each other.

    python docs/results/coefficients_by_shared_classes.py ROUND OUTPUT.json RUN...

writes, for runs that learn coefficients on a split by classes, a client's mean coefficient for
itself and for others by the number of classes that they share, after the round asked for.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tables import markdown

from fedkd_flwr import Run, load_run
from fedkd_flwr.analysis.settings import varied_settings
from fedkd_flwr.plots import label_counts


def by_shared_classes(run: Run, server_round: int) -> dict[str, Any]:
    """Return the means of a run's coefficients, by shared classes.

    Parameters
    ----------
    run : Run
        With coefficients.
    server_round : int
        After which round, counted from 1.

    Returns
    -------
    dict
        ``seed``, ``itself``, for ``"0"``, ``"1"``, … shared classes ``pairs`` and
        ``mean_coefficient``, and ``ratio``, that of most shared classes to none.
    """
    holds = (label_counts(run) > 0).to_numpy().astype(int)
    shared = holds @ holds.T
    coefficients = run.matrices["coefficients"][server_round - 1]
    others = ~np.eye(len(holds), dtype=bool)
    counts = np.unique(shared[others])
    means = [float(coefficients[others & (shared == count)].mean()) for count in counts]
    return {
        "seed": run.config["seed"],
        "itself": round(float(coefficients.diagonal().mean()), 3),
        **{
            str(count): {
                "pairs": int((others & (shared == count)).sum()),
                "mean_coefficient": float(f"{mean:.3g}"),
            }
            for count, mean in zip(counts.tolist(), means, strict=True)
        },
        "ratio": float(f"{means[-1] / means[0]:.3g}") if means[0] else "infinite",
    }


def rows(file: Path) -> list[dict[str, Any]]:
    """Return the stored values of each run."""
    content: list[dict[str, Any]] = json.loads(file.read_text())
    return content


def ratios(file: Path) -> str:
    """Return each run's ratio of the coefficients with most and with no shared classes."""
    return ", ".join(f"{row['ratio']:,.0f}" for row in rows(file))


def own(file: Path) -> str:
    """Return the mean coefficient of a client for itself, over all runs."""
    return f"{np.mean([row['itself'] for row in rows(file)]):.2f}"


def table(file: Path) -> str:
    """Return one row per combination of settings: mean coefficients over clients and seeds."""
    found = rows(file)
    shared = sorted((key for key in found[0] if key.isdigit()), key=int, reverse=True)
    names = list(found[0]["settings"])
    means = (
        pd.DataFrame(
            {
                **row["settings"],
                "itself": row["itself"],
                **{key: row[key]["mean_coefficient"] for key in shared},
            }
            for row in found
        )
        .groupby(names)
        .mean()
    )
    cells = [
        [*(f"{value:g}" for value in choice), *(f"{mean:.4f}" for mean in values)]
        for choice, values in zip(means.index, means.to_numpy(), strict=True)
    ]
    headings = [f"each with {key} shared classes:" for key in shared]
    return markdown([*(f"`{name}`" for name in names), "itself:", *headings], cells)


def main(server_round: int, output: Path, paths: list[str]) -> None:
    """Write one line per run."""
    runs = sorted((load_run(path) for path in paths), key=lambda run: run.config["seed"])
    varied = varied_settings(runs)
    lines = [
        json.dumps(
            {
                **by_shared_classes(run, server_round),
                "settings": {name: run.config[name] for name in varied},
            }
        )
        for run in runs
    ]
    output.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
