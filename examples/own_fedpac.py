"""FedPAC (Xu, Tong and Huang, ICLR 2023, arXiv:2306.11867): aligned features, combined heads.

Differences from the paper: class statistics are those after training, with a constant feature for
the bias. The head is trained as long as the body, at its rate. Small weights are not cut. Unsampled
clients count with their last reply; new ones get the mean of heads.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls
from torch import Tensor, nn, stack

import fedkd_flwr
from examples.own_fedrep import FedRepClient, body_loss, head_loss
from fedkd_flwr.clients.api import TrainReply, features
from strategies.api import ExpectedArray, LibraryState, LibraryStrategy, Sent, Settings


class FedPACSettings(Settings):
    """``own-fedpac.alignment`` is lambda, the factor of the mean squared distance of features."""

    table = "own-fedpac"
    alignment: float = 1.0


@dataclass(frozen=True)
class FedPACState(LibraryState):
    """Features h are (h, 1), for the bias of the head."""

    sums: np.ndarray  # by class, (K, d + 1)
    moments: dict[int, np.ndarray]  # of each client: P(y) E[(h, 1)|y], and that of squares


class FedPAC(LibraryStrategy):
    """Averages bodies and class means, and combines the heads anew for each client."""

    record = LibraryStrategy.record.derived(
        settings_type=FedPACSettings, sends=(*LibraryStrategy.record.sends, Sent("moments"))
    )

    def begin(self, initial):
        sums = np.zeros((self.plan.num_classes, self.server_models.feature_width + 1))
        return FedPACState(**vars(super().begin(initial)), sums=sums, moments={})

    def model_for(self, partition_id):
        """Return the mean model, with heads mixed for min Σ V_j a_j² + |Σ a_j (M - M_j)|²."""
        if partition_id not in (kept := self.state.moments):
            return self.state.model
        moments, squares = np.stack(list(kept.values()), axis=1)
        variances = (squares - moments**2).sum(axis=(1, 2)).clip(0) / self.round.sizes(kept)
        bias = (kept[partition_id][0] - moments).reshape(len(kept), -1)
        rows = np.vstack([np.ones(len(kept)), np.diag(np.sqrt(variances)), bias.T])
        weights, _ = nnls(rows, np.eye(len(rows))[0])  # on the simplex, up to a factor
        model = {kind: vector.copy() for kind, vector in self.state.model.items()}
        for name, head in [*self.layers(model).items()][-2:]:  # views of the copied vectors
            heads = [self.layers(self.state.library[n])[name] for n in kept]
            head[:] = np.average(heads, axis=0, weights=weights)
        return model

    def extra_parts(self, partition_id):
        sums = self.state.sums  # the last column counts, so that it tells whether there is a mean
        return {"means": np.float32(sums / sums[:, -1:].clip(0.5))}

    def extra_expected_arrays(self):
        return {"moments": ExpectedArray((2, *self.state.sums.shape))}

    def aggregate(self, server_round, replies):
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
            gap = (features(model, images) - self.means[labels, :-1]) * self.means[labels, -1:]
            return body_loss(model, images, labels) + self.scale * gap.square().mean()

    def train(self, received, server_round, phase):
        self.receive_model(received)
        self.train_locally(server_round, head_loss)
        aligned = self.Aligned(self.tensor(received["means"]), self.settings.alignment)
        loss = self.train_locally(server_round, aligned)
        hidden = nn.functional.pad(self.features(), (0, 1), value=1.0)
        shares = nn.functional.one_hot(self.data.train_labels, self.data.classes) / len(hidden)
        moments = stack([shares.T @ hidden, shares.T @ hidden.square()]).cpu().numpy()
        return TrainReply(self.model_arrays() | {"moments": moments}, {"train-loss": loss})


fedpac = fedkd_flwr.register("own-fedpac", strategy=FedPAC, client=FedPACClient)
