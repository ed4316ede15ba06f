"""What a client returns to the server."""

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from fedkd_flwr.training.jobs import Steps

Arrays = dict[str, NDArray[Any]]
"""Named arrays of a message."""


@dataclass(frozen=True)
class TrainReply:
    """A client's reply to a message.

    Attributes
    ----------
    arrays : dict of str to ndarray
        Named arrays for the server. No other arrays leave the client.
    metrics : dict of str to float
        Numbers for the server, as declared by the strategy, and the counts of an evaluation.
    answers : bytes
        Which test images the evaluated model classifies correctly, if the run records it.
    """

    arrays: Arrays = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    answers: bytes = b""

    def with_evaluation(self, evaluation: "TrainReply") -> "TrainReply":
        """Return the reply with the results of an evaluation."""
        return TrainReply(self.arrays, {**self.metrics, **evaluation.metrics}, evaluation.answers)


Training = Steps[TrainReply]
"""A client's training: a generator that yields jobs and returns the reply."""
