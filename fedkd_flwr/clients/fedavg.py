"""Clients of FedAvg (McMahan et al., AISTATS 2017), with and without fine-tuning."""

from fedkd_flwr.clients.base import Arrays, PersonalClient, TrainReply
from fedkd_flwr.state import exchanged_state, fill_model
from fedkd_flwr.training.loop import epoch_batches, train_on
from strategies.fedavg import FineTuningSettings


class FedAvgClient(PersonalClient):
    """Trains the global model on its own data and sends it back."""

    # The model is replaced each round, so old momentum points nowhere.
    keeps_optimizer = False

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Load the global model, train locally, reply with the parameters."""
        self.receive_model(received)
        loss = self.train_locally(server_round)
        return TrainReply(self.model_arrays(), {"train-loss": loss})

    def prepare_evaluation(self, received: Arrays, server_round: int) -> dict[str, float]:
        """Evaluate the global model that came with the message."""
        self.receive_model(received)
        return {}

    def receive_model(self, received: Arrays) -> None:
        """Overwrite the model with what the server sent."""
        fill_model(self.model, {name: self.tensor(array) for name, array in received.items()})

    def model_arrays(self) -> Arrays:
        """Return the model's parameters and floating-point buffers by name."""
        return {name: value.cpu().numpy() for name, value in exchanged_state(self.model).items()}


class FineTuningClient(FedAvgClient):
    """FedAvg's client that fine-tunes the global model before it is evaluated."""

    settings: FineTuningSettings

    def prepare_evaluation(self, received: Arrays, server_round: int) -> dict[str, float]:
        """Fine-tune the global model on the client's own training data."""
        self.receive_model(received)
        batches = epoch_batches(
            self.num_examples,
            self.run.training.batch_size,
            self.settings.epochs,
            self.generator("fine-tuning-batches", server_round),
        )
        optimizer = self.optimizer(self.model)
        return {"train-loss": train_on(self.model, self.private_loss, optimizer, batches)}
