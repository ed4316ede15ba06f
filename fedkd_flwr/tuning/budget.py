"""The unit of a tuning's budget: the gradient steps of a run of `local`."""

from collections.abc import Mapping
from typing import Any

from fedkd_flwr.config import RunConfig, read_config
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.engines.starting import with_natural_clients
from fedkd_flwr.training.loop import batch_starts
from strategies.core.plan import sample_clients

BASELINE = "local"
"""Training alone, which is always a possible answer."""


def steps_of_local(settings: Mapping[str, Any], seed: int) -> int:
    """Return the gradient steps that all clients of `local` take in a run, without training.

    They do not depend on the settings that are searched, which have no effect on the batches.

    Parameters
    ----------
    settings : mapping
        The flat run config.
    seed : int
        Of the split, and of the clients that are sampled.
    """
    configuration = read_config({**settings, "strategy": BASELINE, "seed": seed})
    run = with_natural_clients(configuration).run
    plan = run.plan
    trained = sorted({*range(plan.num_clients)} - {*plan.new_client_ids})
    by_client = {n: _steps_of_round(run, n) for n in trained}
    return sum(
        by_client[n]
        for server_round in range(1, plan.num_server_rounds + 1)
        for n in sample_clients(trained, plan.sample_size, seed, server_round)
    )


def _steps_of_round(run: RunConfig, partition_id: int) -> int:
    """Return the steps of a client in a round: tau random batches if set, else E epochs."""
    training = run.training
    if training.local_iterations:
        return training.local_iterations
    samples = len(load_client(run.data_plan, partition_id).train_labels)
    return training.local_epochs * len(batch_starts(samples, training.batch_size))
