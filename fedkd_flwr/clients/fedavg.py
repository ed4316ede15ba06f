"""Clients of FedAvg and of methods that exchange models like it, with or without fine-tuning."""

from dataclasses import replace

from fedkd_flwr.clients.base import Arrays, Evaluated
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

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Fine-tune the model in the message; the epochs of the run come on top."""
        evaluated = super().evaluated(received, server_round)
        return replace(evaluated, fine_tune_epochs=self.settings.epochs)
