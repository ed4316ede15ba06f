"""Write the tumors that come with scikit-learn as a table with a made-up column of three hospitals.

uv run python -m examples.own_table tumors.csv
uv run fedkd run -c dataset=folder:tumors.csv -c client-column=hospital -c models=mlp
"""

import sys

import numpy as np
from sklearn.datasets import load_breast_cancer


def write_tumors(path: str) -> None:
    """Write 30 columns of measurements, ``kind`` and ``hospital``; hospitals differ in size."""
    table = load_breast_cancer(as_frame=True)
    frame = table.data.assign(kind=table.target_names[table.target])
    frame["hospital"] = np.random.default_rng(0).choice(["north", "south", "east"], len(frame))
    frame.to_csv(path, index=False)


if __name__ == "__main__":
    write_tumors(sys.argv[1])
