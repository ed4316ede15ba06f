"""What a client returns to the server."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

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


def require_reply(reply: object, client: type) -> None:
    """Refuse what a client's `train` returned if it is no `TrainReply`.

    Raises
    ------
    TypeError
        With one sentence.
    """
    name = f"{client.__qualname__}.train"
    if isinstance(reply, TrainReply):
        for metric, value in reply.metrics.items():
            if not isinstance(value, int | float):
                kind = type(value).__name__
                raise TypeError(f"{name} reports {metric} as a {kind}; write float(...)")
        return
    if isinstance(reply, Generator):
        raise TypeError(
            f"{name} yields jobs; it is a plain function now: remove `yield from` and `yield`, and "
            "write `loss = self.train_locally(server_round)` or `self.do(job)`"
        )
    raise TypeError(f"{name} returned a {type(reply).__name__}; return a TrainReply")
