"""What clients report in numbers: of their training, and correct predictions of their models.

A client is evaluated with its *own* model, the one that the method leaves with it. Besides, a
method may evaluate the model as *received*, after local training (*trained*), or after its last
distillation (*distilled*), and the *global* model; a safeguard evaluates the client's *private*
model and what the client would deploy (*deployed*).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any, Literal, get_args

from flwr.serverapp import Grid

from strategies.core.declarations import Data
from strategies.core.replies import LARGEST_LOSS, ClientInfo, InvalidReplyError, Metric, Reply

EvaluatedModel = Literal["own", "received", "trained", "distilled", "global", "private", "deployed"]
"""Which model of a client is evaluated."""

Split = Literal["test", "validation"]  # the part of a client's data on which it is evaluated

MODELS: tuple[EvaluatedModel, ...] = get_args(EvaluatedModel)
SPLITS: tuple[Split, ...] = get_args(Split)

IN_TRAINING = ("received", "trained", "distilled")
"""Models that a client has only while it trains, so that its train reply has their counts."""

LARGEST_COUNT = 1e9  # upper limit of the number of samples of a client


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


TRAIN_LOSS = Metric("train-loss", through_model=True)
"""Mean training loss over all private samples of the round."""

MOVED_PRIVATE = Metric("moved-private", low=0, inputs=(), through_model=True)
"""Change of the weights by private training, relative to their norm."""

MOVED_PUBLIC = Metric("moved-public", low=0, inputs=(Data.PUBLIC,), through_model=True)
"""Change of the weights by knowledge of other clients, relative to their norm."""

GRADIENT_STEPS = Metric("gradient-steps", averaged=False, low=0, high=LARGEST_COUNT, inputs=())
"""Optimizer steps of a client in a round, of every kind. Every train reply may report them."""

FINE_TUNING_STEPS = Metric(
    "fine-tuning-steps",
    averaged=False,
    low=0,
    high=LARGEST_COUNT,
    inputs=(Data.TRAINING, Data.VALIDATION),
)
"""Optimizer steps between a client's last training and an evaluation; early ends tell of data."""

DP_EPSILON = Metric("dp-epsilon", averaged=False, low=0, inputs=())
"""Epsilon that a client has spent by DP-SGD since the start of the run."""

SECONDS = "seconds"
"""Seconds from the start of a round's exchanges to a client's replies, as the server measures."""

OF_TRAINING = (GRADIENT_STEPS, DP_EPSILON)  # what the train replies of every method may report

SIZES = (
    Metric("num-examples", inputs=(), required=True),
    Metric("test-size", inputs=(Data.TEST,)),
    Metric("validation-size", inputs=(Data.VALIDATION,)),
)
"""What clients report when they join. Sizes that matter for results alone may be withheld."""


def columns_of_training(metrics: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the columns of a round that follow from `OF_TRAINING`, from the metrics of each."""
    rows = list(metrics)
    spent = [row[DP_EPSILON.name] for row in rows if DP_EPSILON.name in row]
    largest = {f"{DP_EPSILON.column}_max": max(spent)} if spent else {}
    return {GRADIENT_STEPS.column: gradient_steps(rows), **largest}


def fine_tuning_steps(evaluations: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the steps of fine-tuning for some evaluations as a column; nothing without them."""
    steps = sum(int(row.get(FINE_TUNING_STEPS.column, 0)) for row in evaluations)
    return {FINE_TUNING_STEPS.column: steps} if steps else {}


def gradient_steps(metrics: Iterable[Mapping[str, float]]) -> int:
    """Return the gradient steps of all clients, from the metrics of each."""
    return sum(int(row.get(GRADIENT_STEPS.name, 0)) for row in metrics)


def add_to_metrics(
    metrics: dict[int, dict[str, float]],
    clients: Mapping[int, ClientInfo],
    replies: Mapping[int, Reply],
    grid: Grid | None,
) -> None:
    """Add gradient steps and times of a further exchange to the metrics of a round."""
    for n, reply in replies.items():
        before = metrics.setdefault(n, {})
        before[GRADIENT_STEPS.name] = gradient_steps([before, reply.metrics])
    add_times(metrics, clients, replies, grid)


def add_times(
    metrics: dict[int, dict[str, float]],
    clients: Mapping[int, ClientInfo],
    replies: Iterable[int],
    grid: Grid | None,
) -> None:
    """Add the seconds of replies to the metrics of a round, if the grid has `waited` by node id."""
    waited: Mapping[int, float] = getattr(grid, "waited", {})
    for n in replies:
        if (seconds := waited.get(clients[n].node_id)) is not None:
            before = metrics.setdefault(n, {})
            before[SECONDS] = round(before.get(SECONDS, 0.0) + seconds, 2)


# ---- Further measures of an evaluation, requested by ``measures`` ------------------------

CALIBRATION = "calibration"
AUC = "auc"
F1 = "f1"
BALANCED_ACCURACY = "balanced-accuracy"
CLASSES = "classes"
MEASURES = (CALIBRATION, AUC, F1, BALANCED_ACCURACY, CLASSES)  # allowed words of ``measures``

CALIBRATION_ERROR = "calibration-error"
"""Metric: expected calibration error of a client's model on its test split, in [0, 1]."""

METRIC_OF = {
    CALIBRATION: CALIBRATION_ERROR,
    **{name: name for name in (AUC, F1, BALANCED_ACCURACY)},
}
"""The metric of each measure that is a single number."""

MEANS = ("calibration_error", "auc", "f1", "balanced_accuracy", "held_accuracy", "other_accuracy")
"""Columns of a client whose means are in the row of a round, if reported."""


def class_counts(number: int | str) -> tuple[str, str]:
    """Return the names of a class's counts; ``held`` for all classes of the training."""
    name = number if number == "held" else f"class-{number}"
    return f"{name}-correct", f"{name}-total"


def measured_metrics(measures: Collection[str], classes: int) -> tuple[Metric, ...]:
    """Return the metrics that clients may report for some of `MEASURES`, with K classes."""
    of_test = partial(
        Metric, averaged=False, low=0, inputs=(Data.TEST,), through_model=True, requested=True
    )
    metrics = [of_test(name, high=1) for measure, name in METRIC_OF.items() if measure in measures]
    if CLASSES in measures:
        names = [name for number in range(classes) for name in class_counts(number)]
        metrics += [of_test(name, high=LARGEST_COUNT) for name in names]
        of_held = partial(of_test, high=LARGEST_COUNT, inputs=(Data.TRAINING, Data.TEST))
        metrics += [of_held(name) for name in class_counts("held")]
    return tuple(metrics)


def check_class_counts(metrics: Mapping[str, float]) -> None:
    """Refuse counts by class that do not add up to those of the own model, which were checked."""
    by_class = {n.rpartition("-")[0] for n in metrics if n.startswith(("class-", "held-"))}
    if not by_class:
        return
    own = [metric_name("own", "test", name) for name in ("correct", "total")]
    if not metrics.keys() >= {*own}:
        raise InvalidReplyError("reports counts by class without the total counts")
    pairs = [(metrics.get(f"{n}-correct", -1), metrics.get(f"{n}-total", -1)) for n in by_class]
    held = metrics.get("held-correct", -1), metrics.get("held-total", -1)
    right, of = (metrics[name] for name in own)
    # A node does not report its small classes, neither one by one nor among those held.
    nested = (0, 0), held, totals_of_classes(metrics), (right, of)
    fits = all(0 <= right <= total and right == int(right) for right, total in pairs)
    # Of the samples that each adds to the one before, no more are right than there are.
    fits &= all(
        0 <= right - less_right <= total - less_total
        for (less_right, less_total), (right, total) in pairwise(nested)
    )
    if not fits:
        raise InvalidReplyError("reports counts by class that do not add up to the total counts")


def totals_of_classes(metrics: Mapping[str, float]) -> tuple[float, float]:
    """Return the correct predictions and samples of all classes that a client reports."""
    of_classes = {name: count for name, count in metrics.items() if name.startswith("class-")}
    correct = sum(count for name, count in of_classes.items() if name.endswith("-correct"))
    return correct, sum(of_classes.values()) - correct
