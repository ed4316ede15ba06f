"""The samples behind a run, for those who want to look at its models themselves."""

from fedkd_flwr.config import read_config
from fedkd_flwr.data.clients import ClientData, load_client
from fedkd_flwr.runs import Run, recorded_config


def client_data(run: Run, partition_id: int) -> ClientData:
    """Return the samples that a client of a run was trained, validated and tested on.

    Parameters
    ----------
    run : Run
        Finished or not.
    partition_id : int
        Which client, 0..N-1.

    Returns
    -------
    ClientData
        Images and labels of its three parts, and the public pool.

    Raises
    ------
    ConfigError, DataError
        If this version of the project cannot rebuild the run's data on this machine.
    """
    return load_client(read_config(recorded_config(run)).run.data_plan, partition_id)
