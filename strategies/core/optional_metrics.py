"""Further measures of an evaluation, requested by ``measures``: names, limits and checks."""

from collections.abc import Collection, Mapping
from functools import partial
from itertools import pairwise

from strategies.core.declarations import Data
from strategies.core.metrics import LARGEST_COUNT, metric_name
from strategies.core.replies import InvalidReplyError, Metric

CALIBRATION = "calibration"
AUC = "auc"
F1 = "f1"
BALANCED_ACCURACY = "balanced-accuracy"
CLASSES = "classes"
MEASURES = (CALIBRATION, AUC, F1, BALANCED_ACCURACY, CLASSES)
"""Allowed words of ``measures``."""

CALIBRATION_ERROR = "calibration-error"
"""Metric: expected calibration error of a client's model on its test split, in [0, 1]."""

AREA = "auc"
"""Metric: mean area under the ROC curve of each class against the rest, in [0, 1]."""

METRIC_OF = {
    CALIBRATION: CALIBRATION_ERROR,
    AUC: AREA,
    F1: F1,
    BALANCED_ACCURACY: BALANCED_ACCURACY,
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
    totals = {n: count for n, count in metrics.items() if n.endswith("-total") and _by_class(n)}
    rights = {n: count for n, count in metrics.items() if n.endswith("-correct") and _by_class(n)}
    if not totals and not rights:
        return
    own = [metric_name("own", "test", name) for name in ("correct", "total")]
    if not metrics.keys() >= {*own}:
        raise InvalidReplyError("reports counts by class without the total counts")
    pairs = [(rights.get(n.replace("-total", "-correct"), -1), totals[n]) for n in totals]
    held = metrics.get("held-correct", -1), metrics.get("held-total", -1)
    right, of = (metrics[name] for name in own)
    # A node does not report its small classes, neither one by one nor among those held.
    nested = (0, 0), held, totals_of_classes(metrics), (right, of)
    fits = (
        len(rights) == len(totals)
        and all(0 <= right <= total and right == int(right) for right, total in pairs)
        # Of the samples that each adds to the one before, no more are right than there are.
        and all(
            0 <= right - less_right <= total - less_total
            for (less_right, less_total), (right, total) in pairwise(nested)
        )
    )
    if not fits:
        raise InvalidReplyError("reports counts by class that do not add up to the total counts")


def totals_of_classes(metrics: Mapping[str, float]) -> tuple[float, float]:
    """Return the correct predictions and samples of all classes that a client reports."""
    of_classes = {name: count for name, count in metrics.items() if name.startswith("class-")}
    correct = sum(count for name, count in of_classes.items() if name.endswith("-correct"))
    return correct, sum(of_classes.values()) - correct


def _by_class(name: str) -> bool:
    return name.startswith(("class-", "held-"))
