"""What a method declares of each array and number that its clients send, and parts of models."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class Data(StrEnum):
    """Samples from which something that a client sends is computed."""

    PUBLIC = "public"
    TRAINING = "training"
    VALIDATION = "validation"
    TEST = "test"


RESULTS = frozenset({Data.VALIDATION, Data.TEST})  # samples on which a client is evaluated


@dataclass(frozen=True)
class Sent:
    """An array that clients send; for a number see `strategies.core.replies.Metric`."""

    name: str
    """Its name, or a pattern such as ``layers/*``."""
    inputs: tuple[Data, ...] = field(default=(Data.TRAINING,), kw_only=True)
    """Samples that enter it besides those that trained the model. It may depend on the numbers of
    samples without naming them."""
    through_model: bool = field(default=False, kw_only=True)
    """Whether it depends on the trained model."""
    required: bool = field(default=True, kw_only=True)
    """Whether the server cannot do without it."""
    requested: bool = field(default=False, kw_only=True)
    """Whether clients send it only where the run asks for it by ``measures``."""

    @property
    def is_result(self) -> bool:
        """Whether validation or test samples enter."""
        return not RESULTS.isdisjoint(self.inputs)

    @property
    def tells_of_training(self) -> bool:
        """Whether private training samples enter: by themselves, or through the model alone."""
        return Data.TRAINING in self.inputs or (self.through_model and not self.is_result)


def of_model(name: str, *inputs: Data) -> Sent:
    """Declare an array that training samples enter through the trained model alone."""
    return Sent(name, inputs=inputs, through_model=True)


WEIGHTS = "weights"  # network weights
BUFFERS = "buffers"  # running statistics of batch normalization, which are averaged but not trained
ALPHAS = "alphas"  # architecture weights of a search

MODEL_SENT = (of_model(WEIGHTS), Sent(BUFFERS), of_model(ALPHAS))
"""What clients send of a model. Its statistics are those of training images themselves."""


LayerChoice = slice | Literal["without-batch-norm"]
"""Layers by their position, or all but those of batch normalization."""

WITHOUT_BATCH_NORM: Literal["without-batch-norm"] = "without-batch-norm"
"""All layers but those of batch normalization."""
