"""Per-FedAvg: a global model that is trained to be good after one step on a client's data.

Clients minimize ``f(w - a ∇f(w))`` (Eq. 3). A local step draws two batches b1 and b2, takes
``w' = w - a ∇f(w; b1)`` and then ``w <- w - b ∇f(w'; b2)``; the server averages. A client is
evaluated with the global model after it was adapted to its training data with step size a: by one
step on a batch, or by an epoch.

Differences from the paper
--------------------------
- This is the paper's first-order variant, FO: the factor ``I - a ∇²f(w)`` of the exact
  gradient is omitted.
- b is the run's ``learning-rate``, with its schedule, momentum and weight decay; the paper has a
  constant b alone. The adaptation has none of them, in training and before an evaluation.
- The b2 are the batches of FedAvg: E epochs, or tau batches with ``local-iterations``. The b1 are
  drawn at random. The paper draws both in each of its tau steps.
- Models are weighted by training samples; the paper weights all sampled clients equally.
- The paper adapts by one step. ``adaptation = "epoch"`` takes a step for each batch of the
  training data, as PFLlib does (Zhang et al., JMLR 2025).
- ``evaluate-on = "global"`` evaluates the model before it is adapted, which the paper does not.
- Statistics of batch normalization are averaged as in FedAvg. Both passes of a step update them.
- A new client is not trained: it receives the global model and adapts it.
"""

from typing import Annotated, Literal

from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.plan import Settings
from strategies.core.settings_groups import ANY_ON_NODES, OnNodes, SearchRange
from strategies.parameters import ParameterStrategy


class PerFedAvgSettings(Settings):
    """Settings of Per-FedAvg."""

    table = "per-fedavg"
    inner_learning_rate: Annotated[float, SearchRange(0.003, 0.3, log=True), OnNodes(0, 1)] = Field(
        default=0.01, ge=0
    )
    """a, the step size of the adaptation to a client's data, in training and before evaluation; 0
    is FedAvg."""
    adaptation: Annotated[Literal["batch", "epoch"], ANY_ON_NODES] = "batch"
    """Steps of the adaptation before an evaluation: one on a ``batch``, or those of an
    ``epoch``."""
    evaluate_on: Annotated[Literal["adapted", "global"], ANY_ON_NODES] = "adapted"
    """``adapted`` evaluates the model after the adaptation, ``global`` the model before it."""


class PerFedAvg(ParameterStrategy):
    """FedAvg's server; the clients' loss and their evaluation differ."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="A. Fallah, A. Mokhtari, A. Ozdaglar",
            title="Personalized Federated Learning with Theoretical Guarantees: A "
            "Model-Agnostic Meta-Learning Approach",
            venue="NeurIPS",
            year=2020,
            arxiv="2002.07948",
        ),
        settings_type=PerFedAvgSettings,
        trains_new_clients=False,
    )
