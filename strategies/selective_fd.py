"""Selective-FD: predictions on samples that are foreign to a client, or ambiguous, teach nobody.

Each client estimates the ratio of its samples' density to a uniform one (KuLSIF, Kanamori et al.
2012), and selects the public samples whose ratio reaches a quantile of that of its own samples. The
server averages, for each sample, the soft predictions of the clients that selected it. It drops
samples that nobody selected, and those whose largest mean probability is below
``1 - tau_server / 2``. That is an L1 distance above tau_server from the nearest one-hot label.

Differences from the paper
--------------------------
- The text at hand was the abstract; steps and quantile follow the authors' code, and the server's
  threshold follows public reproductions of it. In the authors' code KuLSIF multiplies by the matrix
  of its linear system instead of solving the system, which is done here.
- A client has one estimator for all of its samples. The authors' code has one for each class in its
  experiments with two classes a client, and sums the selections.
- Half of a client's samples fit the estimator, the others give the quantile. The authors' code fits
  on 5% or 10%. 250 uniform samples and the ridge ``250 ** -0.5`` are those of the authors' code.
- The kernel's width is by default the median distance between the client's samples, or, if these
  are all alike, that to the uniform ones; the authors' code has 5 for its scaling of MNIST.
- Predictions are sent for all public samples, with a mask; unselected ones are uniform. The server
  sends teacher and mask likewise. Clients of the paper send selected predictions only.
- Only soft labels are exchanged. The loss is the KL divergence, whose gradient is that of the
  cross-entropy in the authors' code.
- Clients distill at the start of a round, with the settings of all methods with a teacher, and are
  evaluated before and after local training, as in KT-pFL. The paper's clients distill after local
  training.
- ``mixing`` and noise are refused, since each sample has its own givers.
- A teacher with one kept sample teaches nobody, since batch normalization cannot train on it.
- A new client learns from the last teacher, and predicts nothing.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.declarations import Data, Sent
from strategies.core.masks import unpacked_mask
from strategies.core.method_record import Paper
from strategies.core.plan import RunPlan, Settings
from strategies.core.replies import Arrays, ExpectedArray, Reply
from strategies.core.settings_groups import ANY_ON_NODES, DEFAULT_ON_NODES, SearchRange
from strategies.soft_predictions import (
    DISTILLATION_METRICS,
    PREDICTIONS,
    DistillationSettings,
    SoftPredictionState,
    SoftPredictionStrategy,
    refuse_options,
)

SELECTED, KEPT = "selected", "kept"
"""Names of a client's mask in replies, and of the server's in messages: (P / 8,) uint8."""


class SelectiveFDSettings(DistillationSettings):
    """Settings of Selective-FD."""

    table = "selective-fd"
    client_quantile: Annotated[float, DEFAULT_ON_NODES] = Field(default=0.25, ge=0, le=1)
    """Quantile of the density ratio of a client's own samples that a public sample has to reach;
    0.25 in the authors' code."""
    server_threshold: Annotated[float, SearchRange(0.2, 2.0), ANY_ON_NODES] = Field(
        default=1.0, ge=0, le=2
    )
    """tau_server: largest L1 distance of a mean prediction from a one-hot label; 2 keeps all."""
    kernel_width: Annotated[float, DEFAULT_ON_NODES] = Field(default=0.0, ge=0)
    """Width of the Gaussian kernel; 0 for the median distance between a client's samples."""


def selective_mean(
    predictions: NDArray[Any], selected: NDArray[np.bool_], threshold: float
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Average the predictions of each sample's givers, and say which samples are kept.

    Predictions (R, P, K) have rows on the simplex, `selected` (R, P) says which clients selected
    which samples, and the threshold is tau_server. Return the mean (P, K), uniform where a sample
    is not kept, and which are kept, (P,).
    """
    givers = selected.sum(axis=0)
    total = (predictions * selected[:, :, None]).sum(axis=0)
    mean = total / np.maximum(givers, 1)[:, None]
    kept = (givers > 0) & (mean.max(axis=1) >= 1 - threshold / 2)
    uniform = np.float32(1 / predictions.shape[2])
    return np.where(kept[:, None], mean, uniform).astype(np.float32), kept


@dataclass(frozen=True)
class SelectiveState(SoftPredictionState):
    """The last teacher, and on which samples it teaches."""

    kept: NDArray[np.bool_]
    """Shape (P,) bool; all False before the first round."""


class SelectiveFD(SoftPredictionStrategy):
    """Selective-FD's server: one teacher for all clients, on the kept samples."""

    record = SoftPredictionStrategy.record.derived(
        paper=Paper(
            authors="J. Shao, F. Wu, J. Zhang",
            title="Selective Knowledge Sharing for Privacy-Preserving Federated "
            "Distillation without A Good Teacher",
            venue="Nature Communications 15",
            year=2024,
            arxiv="2304.01731",
        ),
        settings_type=SelectiveFDSettings,
        only_by_name=True,
        # Training samples choose where predictions are not uniform.
        sends=(
            Sent(f"{PREDICTIONS}*", inputs=(Data.PUBLIC, Data.TRAINING), through_model=True),
            Sent(SELECTED, inputs=(Data.PUBLIC, Data.TRAINING)),
        ),
        evaluates=("distilled",),
        train_metrics=DISTILLATION_METRICS,
    )
    settings: SelectiveFDSettings
    state: SelectiveState

    @classmethod
    def check_plan(cls, plan: RunPlan, settings: Settings) -> None:
        super().check_plan(plan, settings)
        own = SelectiveFDSettings.model_validate(settings)
        reason = "since each sample has its own givers"
        refuse_options(own, reason, mixing="mean", noise_multiplier=0)

    def begin(self, initial: Arrays) -> SelectiveState:
        plain = super().begin(initial)
        kept = np.zeros(self.plan.public_size, dtype=np.bool_)
        return SelectiveState(plain.releases, plain.teachers, kept)

    def teachers_for(self, partition_id: int) -> Arrays:
        """Return the arrays of the last teacher and its mask."""
        teacher = super().teachers_for(partition_id)
        if not teacher:
            return {}
        return {**teacher, **self.round.once(KEPT, lambda: {KEPT: np.packbits(self.state.kept)})}

    def takes_late_reply(self, partition_id: int) -> bool:
        """Refuse it: each round asks for other samples."""
        return False

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, ExpectedArray]:
        due = super().expected_arrays(server_round, partition_id)
        size = len(np.packbits(self.state.kept))
        return {**due, SELECTED: ExpectedArray((size,), "uint8")} if due else due

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> SelectiveState:
        """Average each sample's selected predictions, and drop ambiguous ones."""
        size = self.plan.public_size
        masks = [unpacked_mask(reply.arrays[SELECTED], size) for reply in replies.values()]
        predictions = self.stack_predictions(replies)
        teachers, kept = selective_mean(
            predictions, np.stack(masks), self.settings.server_threshold
        )
        return replace(self.state, teachers=teachers, kept=kept)
