"""What a client returns to the server."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from fedkd_flwr.data.client_data import ClientData
from fedkd_flwr.training.loop import count_correct
from strategies.core.counts import EvaluatedModel, Split, as_metrics

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


def counts_of(
    model: EvaluatedModel, logits: Mapping[Split, Tensor], data: ClientData
) -> dict[str, float]:
    """Return the correct predictions and losses of a model on each split, as metrics.

    The logits are (n, K) by split.
    """
    metrics: dict[str, float] = {}
    for split, (_, labels) in data.evaluated_splits.items():
        found = count_correct(logits[split], labels)
        metrics |= as_metrics(model, split, found.correct, found.total, found.loss)
    return metrics


def require_reply(reply: object, client: type) -> None:
    """Refuse what a client's `train` returned if it is no `TrainReply`.

    Raises
    ------
    TypeError
        With one sentence.
    """
    if isinstance(reply, TrainReply):
        return
    name = f"{client.__qualname__}.train"
    if isinstance(reply, Generator):
        raise TypeError(
            f"{name} yields jobs; it is a plain function now: remove `yield from` and `yield`, and "
            "write `loss = self.train_locally(server_round)` or `self.do(job)`"
        )
    raise TypeError(f"{name} returned a {type(reply).__name__}; return a TrainReply")
