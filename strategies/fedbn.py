"""FedBN: FedAvg whose batch normalization stays on the clients.

A client trains its whole model. Scales, shifts and running statistics of its batch normalization
are never sent; all other layers are averaged. A client is evaluated with the average and its own
batch normalization.

Differences from the paper
--------------------------
- Clients are weighted by their training samples. The authors' code weights them equally.
- Momentum of batch normalization is kept from round to round, and that of the averaged layers
  starts anew. The authors' code has no momentum.
- By default all methods here are evaluated with statistics computed anew from a client's training
  samples. ``batch-norm-statistics = "kept"`` evaluates the running ones, as the
  authors' code does.
- Clients may be sampled. In the authors' code all of them participate in each round.
- A model without batch normalization is trained as in FedAvg.
"""

from strategies.core.declarations import WEIGHTS, WITHOUT_BATCH_NORM, LayerChoice, of_model
from strategies.core.method_record import Paper
from strategies.core.plan import Settings
from strategies.parameters import ParameterStrategy


class FedBN(ParameterStrategy):
    """FedAvg of all layers but batch normalization."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou",
            title="FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
            venue="ICLR",
            year=2021,
            arxiv="2102.07623",
        ),
        exchanged="parameters without batch normalization",
        sends=(of_model(WEIGHTS),),
        dp_sgd=True,
    )

    @classmethod
    def shared_layers(cls, settings: Settings) -> LayerChoice:
        return WITHOUT_BATCH_NORM
