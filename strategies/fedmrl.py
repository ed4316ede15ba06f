"""FedMRL: a private and a shared model whose fused features serve both heads.

Besides its private model, with d2 features, a client holds a copy of a small shared model with
``d1 <= d2`` features, and a linear projector ``P`` from ``d1 + d2`` to d2 features of its own. Both
models' features of a sample are concatenated and fused, ``r = P [h_shared(x), h_private(x)]``. The
first d1 entries of r, the coarse representation, enter the shared model's head, and all of r, the
fine one, enters the private head:

    L = m CE(head_shared(r[:d1]), y) + CE(head_private(r), y).

One step on L trains the private model, the projector and the shared model together. The server
averages the shared models as in FedAvg. Private models may have any architecture.

Differences from the paper
--------------------------
- The paper weighs both losses and sets both weights to 1. Here the weight m of the coarse loss is a
  setting, and that of the fine loss is 1: a common factor is part of the learning rate.
- The paper gives the small model a last hidden layer of d1 units. Here any architecture may be
  shared. If its number of features is not d1, a linear layer before its head maps to d1.
- d1 is at most the number of features of the narrowest model of the run. By default it is that
  number, or the shared model's own if that is smaller.
- All clients with one pair of architectures start from one draw of the projector, as in the
  authors' code, unless ``initial-weights = "own"``.
- Private models of one architecture start from common weights, unless
  ``initial-weights = "own"``. The shared model's are drawn apart from them.
- The authors' code clips the gradient norm of each part at 50. Here nothing is clipped.
- A client is evaluated with its private model, its projector and the shared model as it has
  trained it, as in the authors' code. The fine head predicts.
- Momentum of the private model and of the projector is kept. The shared model's starts anew, since
  it is replaced.
- An exported model is a sum of two networks with one output layer each. Head and projector are
  linear, so that the sum equals the fine head's output.
"""

from typing import Annotated

from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.replies import Arrays
from strategies.core.settings_groups import ANY_ON_NODES, OnNodes, SearchRange
from strategies.parameters import ParameterState, SharedModelSettings, SharedModelStrategy


class FedMRLSettings(SharedModelSettings):
    """Settings of FedMRL."""

    table = "fedmrl"
    shared_width: Annotated[int, ANY_ON_NODES] = Field(default=0, ge=0)
    """d1, the number of features of the shared model, at most that of the narrowest model; 0 for
    the largest possible."""
    coarse_weight: Annotated[float, SearchRange(0.1, 10.0, log=True), OnNodes(0, 10)] = Field(
        default=1.0, ge=0
    )
    """m, the weight of the shared head's loss; 0 leaves that head as it is, apart from weight
    decay."""

    def width(self, narrowest: int) -> int:
        """Return d1; `narrowest` is the smallest number of features of all models."""
        return min(self.shared_width or narrowest, narrowest)


class FedMRL(SharedModelStrategy):
    """FedAvg's server on the shared model; only the clients differ."""

    record = SharedModelStrategy.record.derived(
        paper=Paper(
            authors="L. Yi, H. Yu, C. Ren, G. Wang, X. Liu, X. Li",
            title="Federated Model Heterogeneous Matryoshka Representation Learning",
            venue="NeurIPS",
            year=2024,
            arxiv="2406.00488",
        ),
        settings_type=FedMRLSettings,
        dp_sgd=True,
    )
    settings: FedMRLSettings

    def begin(self, initial: Arrays) -> ParameterState:
        shared, models = self.settings.shared_model, self.server_models
        width = self.settings.width(models.narrowest(shared))
        return ParameterState(dict(models.initial_shared(shared, width)))
