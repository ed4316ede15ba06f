"""FedRep: clients share a representation and fit a personal head to it before they train it.

A client first trains its head on the body that it received, then the body below that head, and
sends the body. The server averages the bodies. The head, the last layer, is never sent
(Algorithm 1).

Differences from the paper
--------------------------
- Bodies are weighted by their training samples in the average; in the paper all count alike.
- The body is trained for the run's local epochs or iterations, the head for `head_epochs`.
- The head is the last layer with parameters, whatever the model.
- Momentum of the head is kept from round to round. The body's starts anew, since it is replaced.
- Batch normalization of the body runs on batch statistics while the head is trained, so its running
  statistics change then too.
- A client that was never sampled is evaluated with an untrained head.
"""

from typing import Annotated

from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.plan import Settings
from strategies.core.settings_groups import OnNodes, SearchRange
from strategies.parameters import ParameterStrategy


class FedRepSettings(Settings):
    """Settings of FedRep."""

    table = "fedrep"
    head_epochs: Annotated[int, SearchRange(1, 10, log=True), OnNodes(1, 100)] = Field(
        default=10, ge=1
    )
    """Epochs of training the head in each round, before the body is trained."""


class FedRep(ParameterStrategy):
    """FedAvg of the body."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai",
            title="Exploiting Shared Representations for Personalized Federated Learning",
            venue="ICML",
            year=2021,
            arxiv="2102.07078",
        ),
        exchanged="parameters of the body",
        settings_type=FedRepSettings,
    )

    @classmethod
    def shared_layers(cls, settings: Settings) -> slice:
        """Return all layers but the last. A model of one layer shares nothing."""
        return slice(None, -1)
