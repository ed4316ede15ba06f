"""What a client's `train` returns to the server."""

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from fedkd_flwr.training.jobs import Steps

Arrays = dict[str, NDArray[Any]]
"""Named arrays of a message."""


@dataclass(frozen=True)
class TrainReply:
    """A client's reply to a train message.

    Attributes
    ----------
    arrays : dict of str to ndarray
        Named arrays for the server. No other arrays leave the client.
    metrics : dict of str to float
        Numbers for the server, as declared by the strategy.
    """

    arrays: Arrays = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


Training = Steps[TrainReply]
"""A client's training: a generator that yields jobs and returns the reply."""
