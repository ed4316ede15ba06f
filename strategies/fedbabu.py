"""FedBABU: clients train and share the body below a head that stays at its initial weights.

All clients have the same random head. In a round a client trains the body below it and sends the
body, and the server averages the bodies, weighted by training samples. The head is neither trained
nor sent. Each client then fine-tunes the model on its own data before it is evaluated.

Differences from the paper
--------------------------
- The paper fine-tunes once, after federated training. Here a client fine-tunes before every
  evaluation, from the shared body and the initial head; the result is evaluated and not kept.
- Fine-tuning uses the optimizer, the batch size and the learning rate of the round. It comes on top
  of the run's `fine-tune-epochs`.
- The head is the last layer with parameters, with the initial weights that the model's architecture
  draws from the run's seed. ``initial-weights = "own"`` changes nothing.
- Momentum of the body starts anew in each round, since the body is replaced.
- Batch normalization of the body runs on batch statistics while the head is fine-tuned, so its
  running statistics change then too.
- A model of one layer is refused, since it has no body.
"""

from typing import Annotated, Literal

from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.plan import Settings
from strategies.core.settings_groups import ANY_ON_NODES, OnNodes, SearchRange
from strategies.parameters import ParameterStrategy


class FedBABUSettings(Settings):
    """Settings of FedBABU."""

    table = "fedbabu"
    epochs: Annotated[int, SearchRange(1, 20, log=True), OnNodes(1, 100)] = Field(default=5, ge=1)
    """Epochs of fine-tuning on the client's training data before it is evaluated."""
    part: Annotated[Literal["full", "head", "body"], ANY_ON_NODES] = "full"
    """What is fine-tuned: the ``full`` model, the ``head`` or the ``body``."""


class FedBABU(ParameterStrategy):
    """FedAvg of the body, below a head that nobody trains before fine-tuning."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="J. Oh, S. Kim, S.-Y. Yun",
            title="FedBABU: Toward Enhanced Representation for Federated Image Classification",
            venue="ICLR",
            year=2022,
            arxiv="2106.06042",
        ),
        exchanged="parameters of the body",
        settings_type=FedBABUSettings,
        trains_new_clients=False,
    )

    @classmethod
    def shared_layers(cls, settings: Settings) -> slice:
        return slice(None, -1)
