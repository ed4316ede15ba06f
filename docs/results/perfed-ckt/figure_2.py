"""PerFed-CKT, Fig. 2: the architectures of the clients, and their samples by class.

    PYTHONPATH=docs/results python docs/results/perfed-ckt/figure_2.py DATA_ROOT

The split and the assignment of the preset `perfed-ckt/cifar10-mixed`; nothing is trained. Figure
2 (b) of seed 0 is written beside this script, the numbers of 2 (a) to `measurements.jsonl`.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from measurements import write_measurements
from runs import maker

from fedkd_flwr.clients.architectures import assigned_models
from fedkd_flwr.config import Configuration, read_config
from fedkd_flwr.config.toml_files import upon_preset
from fedkd_flwr.data.clients import client_indices
from fedkd_flwr.data.sources import load_labels
from fedkd_flwr.plots.axes import new_figure
from fedkd_flwr.plots.files import write_figures
from fedkd_flwr.plots.heat_maps import draw_matrix
from fedkd_flwr.runs.provenance import provenance

SEEDS = range(5)


def counts(found: Configuration) -> np.ndarray:
    """Return the number of samples by client and class, (N, K)."""
    data = found.run.data_plan
    labels = load_labels(data.settings.dataset, data.settings.data_root, data.settings.data_format)
    classes = data.settings.num_classes
    return np.stack([np.bincount(labels[own], minlength=classes) for own in client_indices(data)])


def architectures(found: Configuration, seed: int) -> list[dict[str, Any]]:
    """Return a line for each architecture: how many clients have it, and their samples."""
    sizes = counts(found).sum(axis=1)
    names = np.array(assigned_models(found.run.models, found.run.data_plan))
    return [
        {
            "seed": seed,
            "architecture": name,
            "clients": int((names == name).sum()),
            "samples": round(float(sizes[names == name].mean())),
        }
        for name in found.run.models.models
    ]


def main(data_root: str) -> None:
    """Measure all seeds and draw the first."""
    preset = Path(__file__).parents[3] / "conf" / "perfed-ckt" / "cifar10-mixed.toml"
    read = [
        read_config(upon_preset(preset, {"data-root": data_root, "seed": seed})) for seed in SEEDS
    ]
    lines = [line for seed in SEEDS for line in architectures(read[seed], seed)]
    made_by = {"made by": maker(provenance("cpu"))}
    write_measurements("perfed-ckt/architectures", [line | made_by for line in lines])
    matrix = counts(read[0]).T.astype(float)
    figure, axes = new_figure("Client", "Class", grid=False)
    clients, classes = np.arange(matrix.shape[1]), np.arange(matrix.shape[0])
    image = draw_matrix(axes, matrix, classes, clients, limits=(0, matrix.max()))
    figure.colorbar(image, ax=axes, label="Samples")
    write_figures([("samples-by-class", figure)], Path(__file__).parent)
    for line in lines:
        print(line)


if __name__ == "__main__":
    main(sys.argv[1])
