"""The client of Ditto."""

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.parameters import PersonalModelClient
from fedkd_flwr.training.losses import Proximal, parameters_of
from strategies.ditto import DittoSettings


class DittoClient(PersonalModelClient):
    """Trains the global model and sends it back, then trains a personal model and keeps it."""

    settings: DittoSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train w, then v with a proximal term towards the received w."""
        self.receive_model(received)
        center = parameters_of(self.model)
        loss = self.train_locally(server_round)
        arrays = self.model_arrays()
        self.recall_personal_model(received)
        held = Proximal(center, self.settings.personalization_weight)
        personal_loss = self.train_locally(server_round, held, replaced=())
        return TrainReply(arrays, {"train-loss": loss, "personal-loss": personal_loss})
