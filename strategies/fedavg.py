"""FedAvg, and FedAvg with local fine-tuning.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, *Communication-Efficient
Learning of Deep Networks from Decentralized Data*, AISTATS 2017, arXiv:1602.05629.

Differences from the paper: none in the averaging, which is Flower's own. Clients are sampled
by this project's seeded draw, and accuracy is that of the global model on each client's own
test split. Fine-tuning (`FedAvgFineTuned`) changes nothing on the server.
"""

from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from pydantic import Field

from strategies.base import (
    Payload,
    PersonalizedStrategy,
    Reply,
    RunObserver,
    RunPlan,
    Settings,
)


class FedAvg(PersonalizedStrategy):
    """One global model, the mean of the clients' models weighted by their training samples.

    Parameters
    ----------
    plan : RunPlan
        Clients, rounds, sampling and seed.
    settings : Settings
        None of its own.
    observer : RunObserver, optional
        Is told of every finished round.
    """

    needs_one_model = True

    def __init__(
        self, plan: RunPlan, settings: Settings, observer: RunObserver | None = None
    ) -> None:
        super().__init__(plan, settings, observer)
        self._flower = FlowerFedAvg()

    def train_payload(self, server_round: int, partition_id: int) -> Payload:
        """Send the global model."""
        return self.global_arrays

    def evaluate_payload(self, server_round: int, partition_id: int) -> Payload:
        """Send the new global model, on which the client is evaluated."""
        return self.global_arrays

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, tuple[int, ...]]:
        """Ask for the arrays of the global model."""
        return {name: tuple(array.shape) for name, array in self.global_arrays.items()}

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> ArrayRecord | None:
        """Average with Flower's FedAvg; the type of each array is kept."""
        messages = [reply.message for reply in replies.values()]
        averaged, _ = self._flower.aggregate_train(server_round, messages)
        if averaged is None:
            return None
        return ArrayRecord(
            {
                name: Array(array.numpy().astype(self.global_arrays[name].dtype, copy=False))
                for name, array in averaged.items()
            }
        )


class FineTuningSettings(Settings):
    """Settings of local fine-tuning.

    Attributes
    ----------
    epochs : int
        Epochs on the client's own training data before it is evaluated.
    """

    table = "fedavg-ft"
    epochs: int = Field(default=5, ge=1)


class FedAvgFineTuned(FedAvg):
    """FedAvg whose clients fine-tune the global model on their own data before evaluation."""

    settings_type = FineTuningSettings
