"""Number of samples by client and class."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedkd_flwr.config import read_config
from fedkd_flwr.data.clients import client_indices
from fedkd_flwr.data.sources import load_labels
from fedkd_flwr.plots.style import FIGURE_WIDTH, data_title
from fedkd_flwr.runs import Run, recorded_config

WORDS = {"Partition ID": "Client", "Count": "Samples"}
"""Axis labels of flwr-datasets, and those of the other figures."""


def label_counts(run: Run) -> pd.DataFrame:
    """Count each client's samples by class, over its training, validation and test data.

    Returns
    -------
    DataFrame
        One row per client, one column per class of the data set.

    Raises
    ------
    ConfigError, DataError
        If the data of the run cannot be rebuilt on this machine.
    """
    plan = read_config(recorded_config(run)).run.data_plan
    labels = load_labels(plan.settings.dataset, plan.settings.data_root, plan.settings.wanted)
    counts = [
        np.bincount(labels[indices], minlength=plan.settings.num_classes)
        for indices in client_indices(plan)
    ]
    return pd.DataFrame(counts).rename_axis(index="partition_id", columns="label")


def plot_partition(run: Run, **options: Any) -> Figure:
    """Plot the number of samples by client and class, with flwr-datasets.

    Parameters
    ----------
    run : Run
        The run, finished or not.
    **options
        Options of `flwr_datasets.visualization.plot_label_distributions`, such as
        ``plot_type="bar"``.

    Raises
    ------
    ConfigError, DataError
        If the data of the run cannot be rebuilt on this machine.
    """
    # Imported here: they load seaborn and pyarrow, which the other figures do not need.
    from flwr_datasets.visualization import plot_label_distributions

    from fedkd_flwr.plots.shares import KnownShares

    plan = read_config(recorded_config(run)).run.data_plan
    labels = load_labels(plan.settings.dataset, plan.settings.data_root, plan.settings.wanted)
    partitioner = KnownShares(labels, client_indices(plan), plan.settings.num_classes)
    figure = Figure(figsize=(1.1 * FIGURE_WIDTH, 0.7 * FIGURE_WIDTH), layout="constrained")
    defaults = {
        "title": f"{data_title(run)}, seed {run.config['seed']}",
        # Ten or more bar colors are hard to distinguish.
        "plot_type": "heatmap",
        "cmap": "cividis",
        "legend": True,
    }
    axes = figure.subplots()
    plot_label_distributions(partitioner, "label", axis=axes, **{**defaults, **options})
    if not axes.get_ylabel():
        axes.set_ylabel("Class")
    for part in figure.axes:
        part.set_xlabel(WORDS.get(part.get_xlabel(), part.get_xlabel()))
        part.set_ylabel(WORDS.get(part.get_ylabel(), part.get_ylabel()))
    axes.set_title(axes.get_title(), fontsize="medium")
    axes.tick_params(axis="y", rotation=0)
    return figure
