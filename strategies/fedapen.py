"""FedAPEN: a private and a shared model that learn as an ensemble, whose weight clients learn.

A client has a private model with logits p and a copy of the shared model with logits s. It predicts
by the ensemble ``lambda p + (1 - lambda) s``. A small part of its training samples, the
*adaptability set*, trains neither model. In each round a client

1. receives the shared model, and learns lambda in [0, 1] by gradient steps on the cross-entropy of
   the ensemble on the adaptability set, with both models fixed,
2. trains both models on the other samples by

       CE(p) + KL(softmax s || softmax p) + CE(s) + KL(softmax p || softmax s)
       + mu CE(lambda p + (1 - lambda) s),

   where each divergence has a gradient only for the second model,
3. sends the shared model, which the server averages. Private models may have any architecture.

Differences from the paper
--------------------------
- The weight mu of the ensemble's loss is a setting. It is 1 in the paper.
- The paper writes the ensemble's loss once for each model, with the other model fixed. The gradient
  of one term in both models is the same.
- The adaptability set is drawn once for each client: at least one sample, and at most so many that
  two others remain. lambda takes its steps on batches of a fixed order; the authors' code shuffles.
- lambda is learned for an evaluation too, on the averaged model, as in the authors' code. The
  client learns the same lambda again when it receives the same model for its next training.
- The paper averages all clients with equal weights, here models are weighted by their samples.
- Private models of one architecture start from common weights, unless
  ``initial-weights = "own"``. The shared model's are drawn apart from them. The paper draws all.
- Momentum of the private model is kept. The shared model's starts anew, since it is replaced.
- Batch normalization of both models is measured on the client's training samples before lambda is
  learned, as it is before an evaluation.
"""

from typing import Annotated

from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.metrics import TRAIN_LOSS
from strategies.core.replies import Metric
from strategies.core.settings_groups import ANY_ON_NODES, DEFAULT_ON_NODES, OnNodes, SearchRange
from strategies.parameters import SharedModelSettings, SharedModelStrategy


class FedAPENSettings(SharedModelSettings):
    """Settings of FedAPEN."""

    table = "fedapen"
    private_weight: Annotated[float, SearchRange(0.1, 0.9), ANY_ON_NODES] = Field(
        default=0.5, ge=0, le=1
    )
    """lambda before it is learned, the weight of the private model in the ensemble."""
    ensemble_weight: Annotated[float, SearchRange(0.1, 10.0, log=True), OnNodes(0, 10)] = Field(
        default=1.0, ge=0
    )
    """mu, the weight of the ensemble's loss in the training of both models."""
    adaptability_share: Annotated[float, DEFAULT_ON_NODES] = Field(default=0.05, ge=0, lt=1)
    """Share of the training samples on which lambda is learned and no model is trained; 0 leaves
    lambda as it is."""
    adaptability_epochs: Annotated[int, OnNodes(1, 100)] = Field(default=10, ge=1)
    """Passes over these samples in each round."""
    adaptability_rate: Annotated[float, SearchRange(0.001, 0.1, log=True), OnNodes(0, 1)] = Field(
        default=0.001, gt=0
    )
    """Step size of lambda."""


class FedAPEN(SharedModelStrategy):
    """FedAvg's server on the shared model, with which clients are evaluated too."""

    record = SharedModelStrategy.record.derived(
        paper=Paper(
            authors="Z. Qin, S. Deng, M. Zhao, X. Yan",
            title="FedAPEN: Personalized Cross-silo Federated Learning with Adaptability to "
            "Statistical Heterogeneity",
            venue="KDD",
            year=2023,
        ),
        settings_type=FedAPENSettings,
        evaluates_trained_model=False,
        train_metrics=(TRAIN_LOSS, Metric("private-weight", low=0, high=1)),
    )
