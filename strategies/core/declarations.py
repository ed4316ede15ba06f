"""What a method declares of each array and number that its clients send."""

from dataclasses import dataclass, field
from enum import StrEnum


class Data(StrEnum):
    """Samples from which something that a client sends is computed."""

    PUBLIC = "public"
    TRAINING = "training"
    VALIDATION = "validation"
    TEST = "test"


RESULTS = frozenset({Data.VALIDATION, Data.TEST})
"""Samples on which a client is evaluated."""


@dataclass(frozen=True)
class Sent:
    """An array that clients send; for a number see `strategies.core.replies.Metric`.

    Attributes
    ----------
    name : str
        Its name, or a pattern such as ``layers/*``.
    inputs : tuple of Data
        Samples that enter it besides those that trained the model. It may depend on the numbers of
        samples without naming them.
    through_model : bool
        Whether it depends on the trained model.
    required : bool
        Whether the server cannot do without it.
    requested : bool
        Whether clients send it only where the run asks for it by ``measures``.
    """

    name: str
    inputs: tuple[Data, ...] = field(default=(Data.TRAINING,), kw_only=True)
    through_model: bool = field(default=False, kw_only=True)
    required: bool = field(default=True, kw_only=True)
    requested: bool = field(default=False, kw_only=True)

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
