"""The client of KT-pFL on parameters."""

from fedkd_flwr.clients.base import Arrays
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.models.vectors import fill_from_vectors, model_vectors
from strategies.kt_pfl_params import KTpFLParamsSettings
from strategies.parameters import step_towards


class KTpFLParamsClient(ParameterClient):
    """A client like FedAvg's that moves only part of the way to the received model."""

    settings: KTpFLParamsSettings

    def receive_model(self, received: Arrays) -> None:
        """Move the model to ``w + tau (received - w)``. The first received model replaces it."""
        tau = self.settings.transfer_step if self.session.stored_model else 1.0
        moved = step_towards(model_vectors(self.model), dict(received), tau)
        fill_from_vectors(self.model, moved)
