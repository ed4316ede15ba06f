"""Correct predictions of a model on a split: how a message names them, and their checks.

A client is evaluated with its *own* model, the one that the method leaves with it. Besides, a
method may evaluate the model as *received*, after local training (*trained*), or after its last
distillation (*distilled*), and the *global* model; a safeguard evaluates the client's *private*
model and what the client would deploy (*deployed*).
"""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, Literal, NamedTuple, get_args

from strategies.core.client_info import ClientInfo
from strategies.core.replies import LARGEST_LOSS, InvalidReplyError, Metric

EvaluatedModel = Literal["own", "received", "trained", "distilled", "global", "private", "deployed"]
"""Which model of a client is evaluated."""

Split = Literal["test", "validation"]
"""The part of a client's data on which it is evaluated."""

MODELS: tuple[EvaluatedModel, ...] = get_args(EvaluatedModel)
SPLITS: tuple[Split, ...] = get_args(Split)

IN_TRAINING = ("received", "trained", "distilled")
"""Models that a client has only while it trains, so that its train reply has their counts."""

LARGEST_COUNT = 1e9
"""Upper limit of the number of samples of a client."""

PREFIXES = {"own": "", "deployed": "safeguarded_"}
"""How columns of a model begin, if not with its name."""


class Counts(NamedTuple):
    """Correct predictions of one model on one split.

    Attributes
    ----------
    model : str
        One of `MODELS`.
    split : str
        One of `SPLITS`.
    correct, total : int
        Correct predictions, and samples.
    loss : float or None
        Mean cross-entropy; None if it is too large for a mean.
    """

    model: EvaluatedModel
    split: Split
    correct: int
    total: int
    loss: float | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of a client that follow: all for its own model, no loss for another."""
        prefix = column_prefix(self.model, self.split)
        columns: dict[str, Any] = {
            f"{prefix}accuracy": self.correct / self.total,
            f"{prefix}correct": self.correct,
        }
        if self.model == "own":
            columns[f"{prefix}total"] = self.total
            columns |= {} if self.loss is None else {f"{prefix}loss": self.loss}
        return columns


def column_prefix(model: EvaluatedModel, split: Split) -> str:
    """Return how the columns of a model on a split begin, such as ``trained_validation_``."""
    prefix = PREFIXES.get(model, f"{model}_")
    return prefix if split == "test" else f"{prefix}{split}_"


ACCURACIES = tuple(
    f"{column_prefix(model, split)}accuracy"
    for model, split in product(MODELS, SPLITS)
    if model != "own"
)
"""Columns with the accuracies of other models than a client's own."""


def metric_name(model: EvaluatedModel, split: Split, number: str) -> str:
    """Return the name of a number in a message, such as ``own-test-correct``."""
    return f"{model}-{split}-{number}"


def as_metrics(
    model: EvaluatedModel, split: Split, correct: int, total: int, loss: float
) -> dict[str, float]:
    """Return counts as metrics of a message; a loss that is too large for a mean is left out."""
    numbers: dict[str, float] = {"correct": correct, "total": total}
    if abs(loss) <= LARGEST_LOSS:
        numbers["loss"] = loss
    return {metric_name(model, split, name): number for name, number in numbers.items()}


def counts_in(metrics: Mapping[str, float]) -> list[Counts]:
    """Return the counts in the metrics of a message: what `as_metrics` has written."""
    found = []
    for model, split in product(MODELS, SPLITS):
        correct, total, loss = (
            metrics.get(metric_name(model, split, name)) for name in ("correct", "total", "loss")
        )
        if correct is not None and total:
            found.append(Counts(model, split, int(correct), int(total), loss))
    return found


def metrics_of(models: Iterable[EvaluatedModel]) -> tuple[Metric, ...]:
    """Return the metrics with which a client reports the counts of some models."""
    return tuple(
        Metric(metric_name(model, split, name), averaged=False, **limits)
        for model, split in product(models, SPLITS)
        for name, limits in {
            "correct": {"low": 0.0, "high": LARGEST_COUNT},
            "total": {"low": float(split == "test"), "high": LARGEST_COUNT},
            "loss": {},
        }.items()
    )


def check_counts(
    metrics: Mapping[str, float], client: ClientInfo, due: Iterable[EvaluatedModel] = ()
) -> None:
    """Refuse impossible counts. A model that is reported is so on each split of the client.

    Parameters
    ----------
    metrics : mapping of str to float
        The metrics of a reply.
    client : ClientInfo
        Its test and validation sizes, as reported when it joined.
    due : iterable of str
        Models that must not be missing.

    Raises
    ------
    InvalidReplyError
        If a count is missing or contradicts the others or the sizes.
    """
    sizes: dict[Split, int] = {"test": client.test_size, "validation": client.validation_size}
    reported = [
        model
        for model in MODELS
        if any(name.startswith(tuple(f"{model}-{split}-" for split in SPLITS)) for name in metrics)
    ]
    for model, (split, size) in product(dict.fromkeys((*due, *reported)), sizes.items()):
        total = metrics.get(metric_name(model, split, "total"), 0)
        correct = metrics.get(metric_name(model, split, "correct"), -1 if total else 0)
        if total != size or not 0 <= correct <= total or correct != int(correct):
            raise InvalidReplyError(
                f"reports {correct:g} {model}-{split}-correct predictions out of {total:g} "
                f"samples, but has {size}"
            )
