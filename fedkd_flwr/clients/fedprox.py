"""The client of FedProx."""

from fedkd_flwr.clients.base import Arrays
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.training.loop import Loss
from fedkd_flwr.training.losses import Proximal, parameters_of
from strategies.fedprox import FedProxSettings


class FedProxClient(ParameterClient):
    """Trains the global model on its own data, with a proximal term towards it."""

    keeps_model = False
    settings: FedProxSettings

    def local_loss(self, received: Arrays) -> Loss:
        """Return cross-entropy and ``mu / 2 * ||w - w_g||²``, with w_g as received."""
        return Proximal(parameters_of(self.model), self.settings.mu)
