"""The architecture of each client of a run."""

from functools import lru_cache

from fedkd_flwr.data.clients import client_indices
from fedkd_flwr.data.settings import DataPlan
from fedkd_flwr.models.assignment import assign_models
from fedkd_flwr.models.settings import ModelSettings


@lru_cache(maxsize=2)
def assigned_models(models: ModelSettings, data: DataPlan) -> list[str]:
    """Return the architecture of every client of a run, by partition-id."""
    sizes = None
    if models.model_assignment == "by-size":
        sizes = [len(indices) for indices in client_indices(data)]
    return assign_models(models.models, models.model_assignment, data.num_clients, sizes, data.seed)
