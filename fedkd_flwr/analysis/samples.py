"""The data of a run, rebuilt from its settings: a client's samples, and counts by class."""

import numpy as np
import pandas as pd

from fedkd_flwr.data.clients import ClientData, client_indices, labels_of, load_client
from fedkd_flwr.runs import Run, recorded_config


def client_data(run: Run, partition_id: int) -> ClientData:
    """Return the samples that a client of a run was trained, validated and tested on.

    Parameters
    ----------
    run : Run
        The run, finished or not.
    partition_id : int
        The client, 0..N-1.

    Returns
    -------
    ClientData
        Images and labels of its training, validation and test split, and the public samples.

    Raises
    ------
    ConfigError, DataError
        If the data of the run cannot be rebuilt on this machine.

    Examples
    --------
    >>> data = fedkd_flwr.client_data(fedkd_flwr.load_run("runs/first"), 0)
    >>> data.train_images.shape[1:]
    torch.Size([1, 28, 28])
    """
    return load_client(recorded_config(run).run.data_plan, partition_id)


def label_counts(run: Run) -> pd.DataFrame:
    """Count each client's samples by class, over its training, validation and test data.

    One row per client, one column per class of the data set. Raises `ConfigError` or `DataError` if
    the data of the run cannot be rebuilt on this machine.
    """
    plan = recorded_config(run).run.data_plan
    labels = labels_of(plan.settings)
    counts = [
        np.bincount(labels[indices], minlength=plan.settings.num_classes)
        for indices in client_indices(plan)
    ]
    return pd.DataFrame(counts).rename_axis(index="partition_id", columns="label")
