"""Two models of a client as one prediction: the weight of each, and the blend."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

WEIGHTS = {"choose": (0.0, 1.0), "blend": (0.0, 0.25, 0.5, 0.75, 1.0)}
"""Weights of the method's model among which validation data decide, by the safeguard's mode."""


def blended(method: Tensor, private: Tensor, weight: float) -> Tensor:
    """Return the logits of ``a · softmax(method) + (1 - a) · softmax(private)``.

    Parameters
    ----------
    method, private : Tensor
        Shape (n, K), logits of both models.
    weight : float
        a, in [0, 1]. With 0 and 1 the logits of one model are returned as they are.

    Returns
    -------
    Tensor
        Shape (n, K), logarithms of probabilities in float64 where both models count.
    """
    if weight in (0.0, 1.0):
        return method if weight else private
    # In logarithms, because a softmax of one and zeros would have equal zeros.
    parts = (method, math.log(weight)), (private, math.log1p(-weight))
    first, second = (functional.log_softmax(own.double(), dim=1) + part for own, part in parts)
    return torch.logaddexp(first, second)


def chosen_weight(
    method: Tensor, private: Tensor, labels: Tensor, weights: Sequence[float]
) -> float:
    """Return the weight with the smallest cross-entropy on validation data.

    Parameters
    ----------
    method, private : Tensor
        Shape (n, K), logits of both models on validation data.
    labels : Tensor
        Shape (n,), int64.
    weights : sequence of float
        The candidates, in the order in which equal ones are preferred.

    Returns
    -------
    float
        0 if no candidate has a finite cross-entropy.
    """
    losses = {
        weight: float(functional.cross_entropy(blended(method, private, weight).double(), labels))
        for weight in weights
    }
    finite = [weight for weight in weights if math.isfinite(losses[weight])]
    return min(finite, key=lambda weight: losses[weight], default=0.0)
