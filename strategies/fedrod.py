"""Fed-RoD: a global model trained by balanced losses, and a personal head added to its logits.

A client has the global model with features z and logits g(z), and a personal head p. With the
number N_c of its training samples of class c, it trains the global model by the balanced softmax
loss, the cross-entropy of ``g_c(z) + log N_c``. Its own class shares then do not enter the global
model. The personal head is trained by the cross-entropy of ``g(z) + p(z)``, which has a gradient
for p alone. The server averages the global models. A client predicts with ``g(z) + p(z)``.

Differences from the paper
--------------------------
- The personal head is a linear layer. The paper's other variant computes it by a network from a
  client's class shares, and is not implemented.
- Both losses are of one forward pass, and both parts take a step of the same batch. The authors
  published no code. The balanced softmax has no further exponent on N_c.
- The personal head starts at zero, so that a client that has not trained predicts as the global
  model. What p starts from is not stated in the texts that were at hand.
- A client is evaluated with the averaged model and its own head, and the averaged model alone is
  evaluated beside it, as the ``global`` model.
- Momentum of p is kept from round to round. That of the global model starts anew.
"""

from strategies.core.method_record import Paper
from strategies.parameters import ParameterStrategy


class FedRoD(ParameterStrategy):
    """FedAvg's server; personal heads stay on the clients."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="H.-Y. Chen, W.-L. Chao",
            title="On Bridging Generic and Personalized Federated Learning for Image "
            "Classification",
            venue="ICLR",
            year=2022,
            arxiv="2107.00778",
        ),
        evaluates=("global",),
    )
