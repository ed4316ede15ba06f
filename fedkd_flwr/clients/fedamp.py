"""The client of FedAMP."""

from fedkd_flwr.clients.base import Arrays
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.training.loop import Loss
from fedkd_flwr.training.regularizers import Proximal, parameters_of
from strategies.fedamp import FedAMPSettings


class FedAMPClient(ParameterClient):
    """Trains with a proximal term towards the model that the server mixed for the client."""

    settings: FedAMPSettings

    def local_loss(self, received: Arrays) -> Loss:
        """Return cross-entropy and ``lambda / (2 a) * ||w - u_i||²``, with u_i as received."""
        weight = self.settings.regularization_weight / self.settings.attention_step
        return Proximal(parameters_of(self.model), weight)
