"""Correct predictions of a model on a split: how a message names them, and their checks.

A client is evaluated with its *own* model, the one that the method leaves with it. Besides, a
method may evaluate the model as *received*, after local training (*trained*), or after its last
distillation (*distilled*), and the *global* model; a safeguard evaluates the client's *private*
model and what the client would deploy (*deployed*).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Literal, get_args

from strategies.core.client_info import ClientInfo
from strategies.core.declarations import Data
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


@dataclass(frozen=True)
class Counts:
    """Correct predictions of a model on a split; the mean loss is None if it is too large."""

    model: EvaluatedModel
    split: Split
    correct: int
    total: int
    loss: float | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of a client that follow; samples and losses are those of its own model."""
        prefix = column_prefix(self.model, self.split)
        columns: dict[str, Any] = {"accuracy": self.correct / self.total, "correct": self.correct}
        if self.model == "own":
            columns |= {"total": self.total} | ({} if self.loss is None else {"loss": self.loss})
        return {f"{prefix}{name}": value for name, value in columns.items()}


def column_prefix(model: EvaluatedModel, split: Split) -> str:
    """Return how the columns of a model on a split begin, such as ``trained_validation_``."""
    prefix = {"own": "", "deployed": "safeguarded_"}.get(model, f"{model}_")
    return prefix if split == "test" else f"{prefix}{split}_"


def metric_name(model: EvaluatedModel, split: Split, number: str) -> str:
    """Return the name of a number in a message, such as ``own-test-correct``."""
    return f"{model}-{split}-{number}"


def as_metrics(
    model: EvaluatedModel, split: Split, correct: int, total: int, loss: float
) -> dict[str, float]:
    """Return counts as metrics of a message; a loss that is too large for a mean is left out."""
    numbers: dict[str, float] = {"correct": correct, "total": total}
    numbers |= {"loss": loss} if abs(loss) <= LARGEST_LOSS else {}
    return {metric_name(model, split, name): number for name, number in numbers.items()}


def counts_in(metrics: Mapping[str, Any]) -> list[Counts]:
    """Return the counts in the metrics of a message: what `as_metrics` has written."""
    found = []
    for model, split in product(MODELS, SPLITS):
        names = (metric_name(model, split, name) for name in ("correct", "total", "loss"))
        correct, total, loss = map(metrics.get, names)
        if total:
            found.append(Counts(model, split, int(correct or 0), int(total), loss))
    return found


def of_model(model: EvaluatedModel, metrics: Mapping[str, Any]) -> list[Counts]:
    """Return the counts of one model in the metrics of a message."""
    return [counts for counts in counts_in(metrics) if counts.model == model]


def metrics_of(models: Iterable[EvaluatedModel]) -> list[Metric]:
    """Return the metrics with which a client reports the counts of some models."""
    metrics = []
    for model, split in product(models, SPLITS):
        correct, total, loss = (
            metric_name(model, split, name) for name in ("correct", "total", "loss")
        )
        result = partial(Metric, averaged=False, inputs=(Data(split),), through_model=True)
        metrics += [
            result(correct, low=0, high=LARGEST_COUNT),
            result(total, low=split == "test", high=LARGEST_COUNT, through_model=False),
            result(loss),
        ]
    return metrics


def check_counts(
    metrics: Mapping[str, float], client: ClientInfo, due: Iterable[EvaluatedModel] = ()
) -> None:
    """Refuse counts that contradict each other, or the sizes that the client has reported.

    Each model that is `due`, or of which any number is reported, is so on each split.
    """
    sizes: dict[Split, int] = {"test": client.test_size, "validation": client.validation_size}
    reported = [m for m in MODELS if any(f"{m}-{s}-" in name for s in SPLITS for name in metrics)]
    for model, (split, size) in product(dict.fromkeys((*due, *reported)), sizes.items()):
        total = metrics.get(metric_name(model, split, "total"), 0)
        correct = metrics.get(metric_name(model, split, "correct"), -1 if total else 0)
        if total != size or not 0 <= correct <= total or correct != int(correct):
            raise InvalidReplyError(
                f"reports {correct:g} {model}-{split}-correct predictions out of {total:g} "
                f"samples, but has {size}"
            )
