"""Clients of FedAvg and of methods that exchange models like it, with or without fine-tuning."""

from fedkd_flwr.clients.parameters import ParameterClient
from strategies.fedavg import FineTuningSettings
from strategies.fedbabu import FedBABUSettings
from strategies.feddf import PFedDFSettings


class FedAvgClient(ParameterClient):
    """Trains the global model. The next global model replaces it."""

    keeps_model = False


class FineTuningClient(FedAvgClient):
    """A client that fine-tunes the global model before it is evaluated."""

    settings: FineTuningSettings | PFedDFSettings | FedBABUSettings

    @property
    def fine_tune_epochs(self) -> int:
        """Epochs of fine-tuning of the method; those of the run come on top."""
        return self.settings.epochs + super().fine_tune_epochs
