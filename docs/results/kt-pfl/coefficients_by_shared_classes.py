"""Show whether clients with like data end up with larger coefficients for each other.

Prints, for a finished KT-pFL run on a split by classes, the mean coefficient between clients
by the number of classes that they share. To run it:
``python docs/results/kt-pfl/coefficients_by_shared_classes.py RUN``.
"""

import json
import sys

import numpy as np

from fedkd_flwr import load_run
from fedkd_flwr.config import read_config
from fedkd_flwr.data.clients import client_indices
from fedkd_flwr.data.sources import load_labels


def coefficients_by_shared_classes(path: str) -> dict[str, dict[str, float]]:
    """Return mean and number of the coefficients of client pairs, by shared classes.

    Parameters
    ----------
    path : str
        A run directory with coefficients.

    Returns
    -------
    dict
        For ``"0"``, ``"1"``, … shared classes: ``pairs``, ``mean_coefficient``.
    """
    run = load_run(path)
    plan = read_config(run.config).run.data_plan
    labels = load_labels(plan.settings.dataset, plan.settings.data_root)
    classes = [set(labels[indices].tolist()) for indices in client_indices(plan)]
    shared = np.array([[len(mine & theirs) for theirs in classes] for mine in classes])
    coefficients = run.matrices["coefficients"][-1]
    others = ~np.eye(len(classes), dtype=bool)
    return {
        str(count): {
            "pairs": int((others & (shared == count)).sum()),
            "mean_coefficient": round(float(coefficients[others & (shared == count)].mean()), 4),
        }
        for count in np.unique(shared[others]).tolist()
    }


if __name__ == "__main__":
    print(json.dumps(coefficients_by_shared_classes(sys.argv[1]), indent=2))
