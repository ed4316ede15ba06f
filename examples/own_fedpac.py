"""FedPAC (Xu, Tong and Huang, ICLR 2023, arXiv:2306.11867): aligned features, combined heads.

Differences from the paper: class statistics are those after training, also for the combination,
with a constant feature for the bias. The head is trained as long as the body, at its rate. Small
weights are not cut. Unsampled clients count with their last reply; new ones get the mean of heads.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls
from torch import Tensor, nn, stack

import fedkd_flwr
from examples.own_fedrep import FedRepClient, body_loss, features, head_loss
from fedkd_flwr.clients.base import Arrays, TrainReply
from strategies.core.declarations import Sent
from strategies.core.plan import Settings
from strategies.core.replies import ExpectedArray, Reply
from strategies.parameters import LibraryState, LibraryStrategy


class FedPACSettings(Settings):
    """``own-fedpac.alignment`` is lambda, the factor of the mean squared distance of features."""

    table = "own-fedpac"
    alignment: float = 1.0


@dataclass(frozen=True)
class FedPACState(LibraryState):
    """Sums of (h, 1) by class (K, d + 1), and each client's P(y) E[(h, 1)|y] and squares."""

    sums: np.ndarray
    moments: dict[int, np.ndarray]


class FedPAC(LibraryStrategy):
    """Averages bodies and class means, and combines the heads anew for each client."""

    record = LibraryStrategy.record.derived(
        settings_type=FedPACSettings,
        exchanged="models, means",
        sends=(*LibraryStrategy.record.sends, Sent("moments")),
    )

    def begin(self, initial: Arrays) -> FedPACState:
        """Start without class means."""
        sums = np.zeros((self.plan.num_classes, self.server_models.feature_width + 1))
        return FedPACState(**vars(super().begin(initial)), sums=sums, moments={})

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Return class means, the body, and heads mixed for min Σ V_j a_j² + |Σ a_j (M - M_j)|²."""
        model, kept, sums = self.state.model, self.state.moments, self.state.sums
        if partition_id in kept:
            moments, squares = np.stack(list(kept.values()), axis=1)
            variances = (squares - moments**2).sum(axis=(1, 2)).clip(0) / self.round.sizes(kept)
            bias = (kept[partition_id][0] - moments).reshape(len(kept), -1)
            rows = np.vstack([np.ones(len(kept)), np.diag(np.sqrt(variances)), bias.T])
            weights, _ = nnls(rows, np.eye(len(rows))[0])  # on the simplex, up to a factor
            heads = [self.state.library[n]["weights"][-sums.size :] for n in kept]
            parts = model["weights"][: -sums.size], np.average(heads, 0, weights)
            model = {**model, "weights": np.float32(np.concatenate(parts))}
        return {**model, "means": np.float32(sums / sums[:, -1:].clip(0.5))}

    def extra_expected_arrays(self) -> dict[str, ExpectedArray]:
        """Require means of features and of their squares by class, times shares of classes."""
        return {"moments": ExpectedArray((2, *self.state.sums.shape))}

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> FedPACState:
        """Average the models and, by the numbers of samples, the class means."""
        state = super().aggregate(server_round, replies)
        moments = self.state.moments | {n: reply.arrays["moments"] for n, reply in replies.items()}
        sums = np.tensordot(self.round.sizes(moments), [own[0] for own in moments.values()], 1)
        return replace(state, model=self.average(state.library), sums=sums, moments=moments)


class FedPACClient(FedRepClient):
    """Trains the head on the received body, then the body with aligned features."""

    @dataclass(frozen=True)
    class Aligned:
        """The loss of the body, plus lambda times the mean squared distance of features."""

        means: Tensor
        scale: float

        def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
            """Return the mean loss of a batch; a class without a mean is not aligned."""
            gap = (features(model, images) - self.means[labels, :-1]) * self.means[labels, -1:]
            return body_loss(model, images, labels) + self.scale * gap.square().mean()

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Return the model, and the moments of its features by class."""
        self.receive_model(received)
        self.train_locally(server_round, head_loss)
        aligned = self.Aligned(self.tensor(received["means"]), self.settings.alignment)
        loss = self.train_locally(server_round, aligned)
        hidden = nn.functional.pad(self.features(), (0, 1), value=1.0)
        shares = nn.functional.one_hot(self.data.train_labels, self.data.classes) / len(hidden)
        moments = stack([shares.T @ hidden, shares.T @ hidden.square()]).cpu().numpy()
        return TrainReply(self.model_arrays() | {"moments": moments}, {"train-loss": loss})


fedpac = fedkd_flwr.register("own-fedpac", strategy=FedPAC, client=FedPACClient)
