"""The run's models on the server, for methods whose server does more than arithmetic."""

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedkd_flwr.config import RunConfig
from fedkd_flwr.models.build import build_model
from fedkd_flwr.models.vectors import model_vectors
from fedkd_flwr.training.loop import seeded

Vectors = dict[str, NDArray[np.float32]]
"""A model as flat vectors by kind."""


class RunModels:
    """Builds the models of a run, as `strategies.core.server_models.ServerModels` asks.

    Parameters
    ----------
    run : RunConfig
        The common run config.
    """

    def __init__(self, run: RunConfig) -> None:
        self.run = run

    def initial(self, number: int = 0) -> Vectors:
        """Return fresh weights of the run's first architecture; draw 0 is the global model."""
        return model_vectors(self._build(self.run.models.models[0], number))

    def _build(self, name: str, number: int = 0) -> nn.Module:
        data, plan = self.run.data, self.run.plan
        with seeded("cpu", plan.seed, "initial-weights", number):
            return build_model(
                name, data.image_shape, data.num_classes, self.run.models.search_space
            )
