"""The client of PrivateKT (Qi et al., Nature Communications 2023)."""

from torch import Tensor

from fedkd_flwr.clients.base import TrainReply
from fedkd_flwr.clients.kt_pfl import KTpFLClient
from fedkd_flwr.clients.policy import PolicyError
from fedkd_flwr.clients.privacy_ledger import PURE
from strategies.privatekt import LABELS, PrivateKTSettings, randomized


class PrivateKTClient(KTpFLClient):
    """Learns from the server's predictions, and replies with labels after randomized response."""

    settings: PrivateKTSettings

    def release(
        self, predictions: Tensor, metrics: dict[str, float], server_round: int
    ) -> TrainReply:
        """Reply with a label for each row of predictions, at most (A, K), and with nothing else.

        More labels than A are refused: each costs epsilon/A.
        """
        if not len(predictions):
            return TrainReply()
        if len(predictions) > self.settings.knowledge_samples:
            raise PolicyError("the message asks for more labels than privatekt.knowledge-samples")
        self.note_release(server_round)
        labels = predictions.argmax(dim=1).cpu().numpy()
        epsilon, draw = self.settings.label_epsilon, self._draws(server_round).uniform
        return TrainReply({LABELS: randomized(labels, self.data.classes, epsilon, draw)})

    @property
    def release_entry(self) -> dict[str, float]:
        """What the labels of a message add to the node's ledger."""
        return {PURE: self.settings.epsilon}
