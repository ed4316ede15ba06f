"""Which client has how many samples of which class, rebuilt from a run's settings."""

import numpy as np
import pandas as pd

from fedkd_flwr.data.clients import client_indices
from fedkd_flwr.data.sources import load_labels
from fedkd_flwr.runs import Run, recorded_config


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
    plan = recorded_config(run).run.data_plan
    labels = load_labels(plan.settings.dataset, plan.settings.data_root, plan.settings.wanted)
    counts = [
        np.bincount(labels[indices], minlength=plan.settings.num_classes)
        for indices in client_indices(plan)
    ]
    return pd.DataFrame(counts).rename_axis(index="partition_id", columns="label")
