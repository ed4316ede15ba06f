"""Two models of a client as one prediction: the rules by which validation data weigh them.

Few validation images say little about which is better, so both rules lean to the private one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

PRIOR_MEAN = np.array([0.0, 1.0])
"""Mean of the prior of both coefficients in `mixed`: the private model alone."""

PRIOR_DEVIATION = np.array([0.5, 1.0])
"""Standard deviations of the prior: the coefficient of the method's model is held more tightly."""

TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.0, 6.0, 10.0)
"""Temperatures among which validation data decide for each model."""

LEAD = 0.5
"""Standard deviations by which `chosen` wants the method's model to lead."""


@dataclass(frozen=True)
class Blend:
    """``u · method + v · private``, in logits, with u and v at least 0.

    `weight` is the share of the method's model in [0, 1]: its coefficient as part of both, where
    logits are divided by their temperatures.
    """

    weight: float
    method: float
    private: float

    def __call__(self, method: Tensor, private: Tensor) -> Tensor:
        """Return the logits of the blend, (n, K), from those of both models."""
        if not self.method:  # Also of a model that has diverged: 0 times NaN is NaN.
            return self.private * private
        return self.method * method + self.private * private


ONLY_METHOD, ONLY_PRIVATE = Blend(1.0, 1.0, 0.0), Blend(0.0, 0.0, 1.0)


class BlendedModel(nn.Module):
    """Both models of a client as one, not copied, which predicts their blend."""

    def __init__(self, method: nn.Module, private: nn.Module, blend: Blend) -> None:
        super().__init__()
        self.method, self.private, self.blend = method, private, blend

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape (n, K)."""
        return self.blend(self.method(images), self.private(images))


Rule = Callable[[Tensor, Tensor, Tensor], Blend]
"""Returns the blend for the logits of the method's and the private model, (n, K), on validation
data, and labels (n,)."""


def chosen(method: Tensor, private: Tensor, labels: Tensor) -> Blend:
    """Choose the method's model if it leads by `LEAD` standard deviations, else the private one.

    Of b images that only the method's model gets right and c that only the private one does, the
    lead b - c has standard deviation ``sqrt(b + c)`` where both are equally good.
    """
    own, alone = (logits.argmax(dim=1) == labels for logits in (method, private))
    b, c = int((own & ~alone).sum()), int((alone & ~own).sum())
    return ONLY_METHOD if b - c > LEAD * math.sqrt(b + c) else ONLY_PRIVATE


def mixed(method: Tensor, private: Tensor, labels: Tensor) -> Blend:
    """Return the most probable coefficients: a logistic regression on both models' logits.

    Each model's logits are divided by the temperature with the smallest cross-entropy. Then the
    coefficients x >= 0 maximize the likelihood of the labels times a normal prior with `PRIOR_MEAN`
    and `PRIOR_DEVIATION`. The fewer images, the closer the blend is to the private model.
    """
    if not (method.isfinite().all() and private.isfinite().all()):
        return ONLY_PRIVATE
    temperatures = np.array([_temperature(logits, labels) for logits in (method, private)])
    logits = torch.stack([method, private]).double().cpu()
    x = _most_probable(logits / torch.from_numpy(temperatures)[:, None, None], labels.cpu())
    if not x.sum():
        return ONLY_PRIVATE
    u, v = x / temperatures
    return Blend(float(x[0] / x.sum()), float(u), float(v))


def _most_probable(logits: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """Return the most probable coefficients, (2,), of logits, (2, n, K), by labels (n,)."""
    from scipy.optimize import minimize  # deferred: few clients have a safeguard

    def loss(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the negative logarithm of the posterior, up to a constant, and its gradient."""
        log_shares = torch.tensordot(torch.from_numpy(x), logits, dims=1).log_softmax(dim=1)
        excess = log_shares.exp() - functional.one_hot(labels, logits.shape[2])
        off = (x - PRIOR_MEAN) / PRIOR_DEVIATION
        entropy = float(functional.nll_loss(log_shares, labels, reduction="sum"))
        gradient = torch.einsum("nk,jnk->j", excess, logits).numpy()
        return entropy + off @ off / 2, gradient + off / PRIOR_DEVIATION

    found = minimize(loss, PRIOR_MEAN, jac=True, method="L-BFGS-B", bounds=[(0, None)] * 2)
    return np.asarray(found.x)


def _temperature(logits: Tensor, labels: Tensor) -> float:
    return min(TEMPERATURES, key=lambda t: float(functional.cross_entropy(logits / t, labels)))


RULES: dict[str, Rule] = {"choose": chosen, "blend": mixed}
"""The rules by the safeguard's mode."""
