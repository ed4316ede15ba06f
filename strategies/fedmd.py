"""FedMD: every client learns from the plain mean of all soft predictions.

Differences from the paper
--------------------------
- Clients exchange soft predictions at the temperature of KT-pFL, where the paper has class scores,
  the outputs before the softmax.
- Clients approach the mean by KL divergence, with or without a factor T²
  (``kt-pfl.t-squared``). The paper does not name its loss; the released code has the mean
  absolute error of class scores.
- Public samples are unlabeled. The paper's are labeled, and its clients first train on them and
  then on their own data until convergence. Here all start from the run's initial weights.
- Batches, step size and epochs of the distillation are KT-pFL's common settings
  (``kt-pfl.distillation-epochs`` and others), separate from those of local training.
- Clients distill at the start of a round and are evaluated before and after local training, as in
  KT-pFL.
- Clients may be sampled. The mean is over the repliers of a round, and the sampled clients of the
  next round learn from it. In the paper all clients participate in each round.
- ``soft-predictions.mixing``, noise and rounding are options of all methods with soft predictions.
- A new client learns from the last mean of the training clients.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.core.method_record import Paper
from strategies.core.replies import Reply
from strategies.kt_pfl import TeacherSettings
from strategies.soft_predictions import (
    DISTILLATION_METRICS,
    SoftPredictionState,
    SoftPredictionStrategy,
)


class FedMD(SoftPredictionStrategy):
    """FedMD's consensus: one teacher for all clients, the mean of the round's predictions."""

    record = SoftPredictionStrategy.record.derived(
        paper=Paper(
            authors="D. Li, J. Wang",
            title="FedMD: Heterogenous Federated Learning via Model Distillation",
            venue="NeurIPS workshop",
            year=2019,
            arxiv="1910.03581",
        ),
        settings_type=TeacherSettings,
        dp_sgd=True,
        takes_estimators=True,
        evaluates=("distilled",),
        train_metrics=DISTILLATION_METRICS,
    )

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> SoftPredictionState:
        """Average the predictions of the round, shape (P, K)."""
        return replace(self.state, teachers=self.mean_of(replies))

    def mean_of(self, replies: dict[int, Reply]) -> NDArray[Any]:
        """Return the mean of the predictions, shape (P, K)."""
        equal = np.full((1, len(replies)), 1 / len(replies))
        (mean,) = self.mix(equal, self.stack_predictions(replies))
        return mean
