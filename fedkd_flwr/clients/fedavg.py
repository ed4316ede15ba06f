"""Clients of FedAvg and of methods that exchange models like it, with or without fine-tuning."""

from fedkd_flwr.clients.base import Arrays
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.training.loop import epoch_batches, gathered
from strategies.fedavg import FineTuningSettings
from strategies.feddf import PFedDFSettings


class FedAvgClient(ParameterClient):
    """Trains the global model. The next global model replaces it."""

    keeps_model = False


class FineTuningClient(FedAvgClient):
    """A client of FedAvg or FedDF that fine-tunes the global model before it is evaluated."""

    settings: FineTuningSettings | PFedDFSettings

    def prepare_evaluation(self, received: Arrays, server_round: int) -> dict[str, float]:
        """Fine-tune the global model on the client's own training data."""
        self.receive_model(received)
        positions = epoch_batches(
            self.num_examples,
            self.run.training.batch_size,
            self.settings.epochs,
            self.generator("fine-tuning-batches", server_round),
        )
        batches = gathered(positions, self.data.train_images, self.data.train_labels)
        optimizer = self.private_optimizer(self.model.parameters(), server_round)
        return {"fine-tuning-loss": self.fine_tune(optimizer, batches)}
