"""Show whether clients with like data end up with larger coefficients for each other.

Prints, for KT-pFL runs on a split by classes, a client's mean coefficient for itself and for
others by the number of classes that they share, after the round asked for. To run it:
``python docs/results/kt-pfl/coefficients_by_shared_classes.py ROUND RUN...``.
"""

import json
import sys
from typing import Any

import numpy as np

from fedkd_flwr import load_run
from fedkd_flwr.plots import label_counts


def coefficients_by_shared_classes(path: str, server_round: int) -> dict[str, Any]:
    """Return mean and number of the coefficients of client pairs, by shared classes.

    Parameters
    ----------
    path : str
        A run directory with coefficients.
    server_round : int
        After which round, counted from 1.

    Returns
    -------
    dict
        ``seed``, ``itself``, for ``"0"``, ``"1"``, … shared classes ``pairs`` and
        ``mean_coefficient``, and ``ratio``, that of most shared classes to none.
    """
    run = load_run(path)
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


if __name__ == "__main__":
    for path in sys.argv[2:]:
        print(json.dumps(coefficients_by_shared_classes(path, int(sys.argv[1]))))
