"""DS-FL: every client learns from the sharpened mean of all soft predictions.

The mean of the clients' soft predictions ``s(x)`` is broadcast as ``softmax(s(x) / T)`` with a T
well below 1 (*entropy reduction aggregation*, ERA). Without it, the mean of clients with different
data is flat and teaches little.

Differences from the paper
--------------------------
- The server trains no model. The clients' models are evaluated, which may differ in architecture.
  The paper evaluates a model of the server.
- Clients distill the teacher of round t at the start of round t + 1, by KL divergence, whose
  gradient is that of the paper's cross-entropy.
- ``mixing = "median"`` and differential privacy are options of all methods with soft predictions.
"""

from typing import Annotated, Any, Literal

from numpy.typing import NDArray
from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.probabilities import softmax
from strategies.core.replies import Reply
from strategies.core.settings_groups import ANY_ON_NODES
from strategies.fedmd import FedMD
from strategies.soft_predictions import DistillationSettings


class DSFLSettings(DistillationSettings):
    """Settings of DS-FL."""

    table = "ds-fl"
    aggregation: Annotated[Literal["entropy-reduction", "simple"], ANY_ON_NODES] = (
        "entropy-reduction"
    )
    """``entropy-reduction`` sharpens the mean prediction (ERA); ``simple`` keeps it (SA)."""
    era_temperature: Annotated[float, ANY_ON_NODES] = Field(default=0.1, gt=0)
    """T of the sharpening; a smaller T gives a sharper mean."""


class DSFL(FedMD):
    """DS-FL: one teacher for all clients, the sharpened mean of the last predictions."""

    record = FedMD.record.derived(
        paper=Paper(
            authors="S. Itahara, T. Nishio, Y. Koda, M. Morikura, K. Yamamoto",
            title="Distillation-Based Semi-Supervised Federated Learning for "
            "Communication-Efficient Collaborative Training with Non-IID Private Data",
            venue="IEEE Transactions on Mobile Computing",
            year=2021,
            arxiv="2008.06180",
        ),
        settings_type=DSFLSettings,
        dp_sgd=True,
        takes_estimators=True,
    )
    settings: DSFLSettings

    def mean_of(self, replies: dict[int, Reply]) -> NDArray[Any]:
        """Return the mean of the predictions, shape (P, K), sharpened unless it is to be simple."""
        mean = super().mean_of(replies)
        if self.settings.aggregation == "simple":
            return mean
        return softmax(mean, self.settings.era_temperature)
