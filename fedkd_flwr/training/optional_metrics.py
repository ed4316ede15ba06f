"""Optional measures of a model's predictions: calibration, AUC, F1, class counts."""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strategies.core.metrics import (
    AUC,
    BALANCED_ACCURACY,
    CALIBRATION,
    CALIBRATION_ERROR,
    CLASSES,
    F1,
    class_counts,
)

BINS = 15
"""Confidence bins of equal width, as in Guo et al. 2017."""


ClassFilter = Callable[[NDArray[Any]], NDArray[np.bool_]]
"""Maps counts by class, (K,), to the classes that may be reported, (K,)."""


def measured(
    logits: Tensor,
    labels: Tensor,
    held: Tensor,
    measures: Collection[str],
    reported: ClassFilter,
) -> dict[str, float]:
    """Return the values of some measures that the labels define, by metric name.

    `held` (K,) are the classes that the client trains on.
    """
    numbers: dict[str, float] = {}
    # A diverged network predicts NaN, and only measures that count predictions are defined.
    is_finite = bool(logits.isfinite().all())
    if CALIBRATION in measures and is_finite:
        numbers[CALIBRATION_ERROR] = calibration_error(torch.softmax(logits, dim=1), labels)
    if AUC in measures and is_finite:
        area = area_under_curves(torch.softmax(logits, dim=1), labels)
        numbers |= {} if area is None else {AUC: area}
    if F1 in measures:
        numbers[F1] = macro_f1(logits.argmax(dim=1), labels)
    if BALANCED_ACCURACY in measures:
        numbers[BALANCED_ACCURACY] = balanced_accuracy(logits.argmax(dim=1), labels)
    if CLASSES in measures:
        numbers |= counts_by_class(logits, labels, held, reported)
    return numbers


def calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Return the expected calibration error, the gap between confidence and accuracy.

    It is the mean over predictions of |accuracy - mean confidence| of their bin (Guo et al., ICML
    2017, eq. 3).
    """
    confidences, answers = probabilities.double().max(dim=1)
    # Bin m is ((m - 1) / M, m / M].
    bins = (confidences * BINS).ceil().long().clamp(1, BINS) - 1
    surplus = torch.zeros(BINS, dtype=torch.float64, device=labels.device)
    surplus.index_add_(0, bins, (answers == labels).double() - confidences)
    return min(1.0, float(surplus.abs().sum()) / len(labels))


def area_under_curves(probabilities: Tensor, labels: Tensor) -> float | None:
    """Return the mean area under the ROC curve of each class that occurs; None for one class."""
    from sklearn.metrics import roc_auc_score  # deferred: few runs need it

    classes = sorted(set(labels.tolist()))
    if len(classes) < 2:
        return None
    scores = probabilities.double().cpu().numpy()
    truths = {label: (labels == label).cpu().numpy() for label in classes}
    return float(sum(roc_auc_score(truths[k], scores[:, k]) for k in classes) / len(classes))


def macro_f1(predictions: Tensor, labels: Tensor) -> float:
    """Return the mean F1 score over the classes that occur among the labels."""
    from sklearn.metrics import f1_score

    truths, found = labels.cpu().numpy(), predictions.cpu().numpy()
    return float(f1_score(truths, found, labels=np.unique(truths), average="macro"))


def balanced_accuracy(predictions: Tensor, labels: Tensor) -> float:
    """Return the mean recall over the classes that occur among the labels."""
    from sklearn.metrics import recall_score

    truths, found = labels.cpu().numpy(), predictions.cpu().numpy()
    return float(recall_score(truths, found, labels=np.unique(truths), average="macro"))


def counts_by_class(
    logits: Tensor, labels: Tensor, held: Tensor, reported: ClassFilter
) -> dict[str, float]:
    """Return correct predictions and samples of each reported class, and of those held."""
    is_right = logits.argmax(dim=1) == labels
    totals = torch.bincount(labels, minlength=len(held))
    rights = torch.bincount(labels[is_right], minlength=len(held))
    shown = torch.from_numpy(reported(totals.cpu().numpy())).to(held.device)
    counts: dict[str, float] = {}
    for number in shown.nonzero().flatten().tolist():
        pair = int(rights[number]), int(totals[number])
        counts |= dict(zip(class_counts(number), pair, strict=True))
    pair = int(rights[held & shown].sum()), int(totals[held & shown].sum())
    return counts | dict(zip(class_counts("held"), pair, strict=True))
