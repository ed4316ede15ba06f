"""A method of the study: FedAvg whose server goes only a part of the way to the mean."""

from dataclasses import replace

from pydantic import Field
from torch import nn

import fedkd_flwr
from fedkd_flwr.clients.parameters import ParameterClient
from strategies.core.plan import Settings
from strategies.parameters import ParameterState, ParameterStrategy


class DampedSettings(Settings):
    """Settings of the damped mean.

    Attributes
    ----------
    step : float
        Share of the way from the last global model to the mean of the clients' models.
    """

    table = "damped"
    step: float = Field(default=0.5, gt=0, le=1)


class Damped(ParameterStrategy):
    """Moves the global model towards the mean of the clients' models."""

    record = ParameterStrategy.record.derived(settings_type=DampedSettings)
    settings: DampedSettings

    def aggregate_models(self, server_round, models) -> ParameterState:
        """Return the state with ``w + step * (mean - w)``."""
        last, mean, step = self.state.model, self.average(models), self.settings.step
        moved = {kind: w + step * (mean[kind] - w) for kind, w in last.items()}
        return replace(self.state, model=moved)


class Perceptron(nn.Sequential):
    """One hidden layer of 16 units."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(nn.Linear(shape[0], 16), nn.ReLU(), nn.Linear(16, classes))


damped = fedkd_flwr.register("damped", strategy=Damped, client=ParameterClient)
