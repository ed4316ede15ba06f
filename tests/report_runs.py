"""Synthetic runs for the report: a method with coefficients, one with clusters, and local."""

import numpy as np
from test_comparison import write_run

from fedkd_flwr.files import append_array

COEFFICIENTS = np.array(
    [
        np.full((4, 4), 0.25),
        [[0.5, 0.45, 0.05, 0.0], [0.4, 0.6, 0.0, 0.0], [0, 0.1, 0.9, 0], [0, 0, 0, 1]],
    ]
)
"""Two rounds, receiver and giver; the largest weight between two clients is 0.45."""

CLUSTERS = np.array([[0, 0, 1, 1], [0, 0, 1, -1]])
"""Two rounds; the last client is absent in the second."""

ACCURACIES = {
    ("local", 0): [0.5, 0.6, 0.7, 0.8],
    ("local", 1): [0.6, 0.6, 0.6, 0.7],
    ("kt-pfl", 0): [0.6, 0.7, 0.8, 0.7],
    ("kt-pfl", 1): [0.7, 0.7, 0.7, 0.6],
    ("perfed-ckt", 0): [0.5, 0.5, 0.5, 0.5],
}
MATRICES = {"kt-pfl": {"coefficients": COEFFICIENTS}, "perfed-ckt": {"clusters": CLUSTERS}}


def write_runs(folder, **settings):
    for (strategy, seed), accuracies in ACCURACIES.items():
        path = write_run(
            folder,
            strategy,
            seed,
            accuracies,
            **{"max-samples": 600, "held-out-size": 60} | settings,
        )
        if strategy in MATRICES:
            for name, rounds in MATRICES[strategy].items():
                for matrix in rounds:
                    append_array(path / "matrices" / f"{name}.npy", matrix)
    return folder
