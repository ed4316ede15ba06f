"""The client of KT-pFL on parameters."""

from fedkd_flwr.clients import memory
from fedkd_flwr.clients.base import Arrays
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.models.vectors import fill_from_vectors, model_vectors
from strategies.kt_pfl_params import KTpFLParamsSettings
from strategies.parameters import step_towards


class KTpFLParamsClient(ParameterClient):
    """FedAvg's client, but goes only part of the way to the model that it is sent."""

    settings: KTpFLParamsSettings

    def receive_model(self, received: Arrays) -> None:
        """Move the own model to ``w + tau (sent - w)``; take the first one over."""
        is_first = not memory.holds(self.context, "model")
        tau = 1.0 if is_first else self.settings.transfer_step
        moved = step_towards(model_vectors(self.model), dict(received), tau)
        fill_from_vectors(self.model, moved)
