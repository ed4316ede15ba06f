"""What a model's answers say besides how many are right: calibration, AUC, counts by class."""

from collections.abc import Collection

import torch
from torch import Tensor

from strategies.core.measures import (
    AREA,
    AUC,
    CALIBRATION,
    CALIBRATION_ERROR,
    CLASSES,
    class_counts,
)

BINS = 15
"""Bins of confidence, of equal width, as in Guo et al. 2017."""


def measured(
    logits: Tensor, labels: Tensor, held: Tensor, measures: Collection[str]
) -> dict[str, float]:
    """Return the numbers of some measures, by the names of their metrics.

    Parameters
    ----------
    logits : Tensor
        Shape (n, K).
    labels : Tensor
        Shape (n,), int64.
    held : Tensor
        Shape (K,), bool: the classes that the client trains on.
    measures : collection of str
        Some of `strategies.core.measures.MEASURES`.

    Returns
    -------
    dict of str to float
        Without what the labels do not define, such as the AUC of a single class.
    """
    numbers: dict[str, float] = {}
    # A network that has diverged answers with no numbers, and has only counts.
    is_finite = bool(logits.isfinite().all())
    if CALIBRATION in measures and is_finite:
        numbers[CALIBRATION_ERROR] = calibration_error(torch.softmax(logits, dim=1), labels)
    if AUC in measures and is_finite:
        area = area_under_curves(torch.softmax(logits, dim=1), labels)
        numbers |= {} if area is None else {AREA: area}
    if CLASSES in measures:
        numbers |= counts_by_class(logits, labels, held)
    return numbers


def calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Return the expected calibration error: how far confidence and accuracy are apart.

    Answers are sorted into `BINS` bins by their confidence; the error is the mean over answers of
    their bin's |accuracy - mean confidence| (Guo et al., *On Calibration of Modern Neural
    Networks*, ICML 2017, eq. 3).

    Parameters
    ----------
    probabilities : Tensor
        Shape (n, K), n at least 1; rows sum to 1.
    labels : Tensor
        Shape (n,), int64.
    """
    confidences, answers = probabilities.double().max(dim=1)
    # Bin m is ((m - 1) / M, m / M].
    bins = (confidences * BINS).ceil().long().clamp(1, BINS) - 1
    surplus = torch.zeros(BINS, dtype=torch.float64, device=labels.device)
    surplus.index_add_(0, bins, (answers == labels).double() - confidences)
    return min(1.0, float(surplus.abs().sum()) / len(labels))


def area_under_curves(probabilities: Tensor, labels: Tensor) -> float | None:
    """Return the mean area under the ROC curves of each class that occurs against the rest.

    Parameters
    ----------
    probabilities : Tensor
        Shape (n, K).
    labels : Tensor
        Shape (n,), int64.

    Returns
    -------
    float or None
        None where all labels are one: there is no rest.
    """
    from sklearn.metrics import roc_auc_score  # deferred: most runs do not ask for it

    classes = sorted(set(labels.tolist()))
    if len(classes) < 2:
        return None
    scores = probabilities.double().cpu().numpy()
    truths = {label: (labels == label).cpu().numpy() for label in classes}
    return float(sum(roc_auc_score(truths[k], scores[:, k]) for k in classes) / len(classes))


def counts_by_class(logits: Tensor, labels: Tensor, held: Tensor) -> dict[str, float]:
    """Return right answers and samples of each class that occurs, and of all held ones together.

    Parameters
    ----------
    logits : Tensor
        Shape (n, K).
    labels : Tensor
        Shape (n,), int64.
    held : Tensor
        Shape (K,), bool.
    """
    is_right = logits.argmax(dim=1) == labels
    totals = torch.bincount(labels, minlength=len(held))
    rights = torch.bincount(labels[is_right], minlength=len(held))
    counts: dict[str, float] = {}
    for number in totals.nonzero().flatten().tolist():
        pair = int(rights[number]), int(totals[number])
        counts |= dict(zip(class_counts(number), pair, strict=True))
    pair = int(rights[held].sum()), int(totals[held].sum())
    return counts | dict(zip(class_counts("held"), pair, strict=True))
