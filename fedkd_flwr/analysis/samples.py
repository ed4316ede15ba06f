"""Rebuild the data of a client of a run, for example to inspect its model."""

from fedkd_flwr.data.clients import ClientData, load_client
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
    """
    return load_client(recorded_config(run).run.data_plan, partition_id)
