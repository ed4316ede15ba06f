"""Two models of a client as one prediction: the rules by which validation data weigh them.

Few validation images say little about which model is better, so both rules lean to the private
one: `chosen` takes the method's model where it gets clearly more images right, and `mixed` has a
prior for its weight.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

GRID = tuple((k + 0.5) / 20 for k in range(20))
"""Weights of the method's model in `mixed`."""

PRIOR_EXPONENT = 2
"""The prior of weight a is proportional to ``(1 - a)`` to this power: a Beta(1, 3) distribution."""

TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.0, 6.0, 10.0)
"""Temperatures among which validation data decide for each model."""

LEAD = 0.5
"""Standard deviations by which `chosen` wants the method's model to lead."""


@dataclass(frozen=True)
class Blend:
    """``a · softmax(method / T) + (1 - a) · softmax(private / T')``.

    Attributes
    ----------
    weight : float
        a, in [0, 1].
    method_temperature, private_temperature : float
        T and T'.
    """

    weight: float
    method_temperature: float = 1.0
    private_temperature: float = 1.0

    def __call__(self, method: Tensor, private: Tensor) -> Tensor:
        """Return the logits of the blend, (n, K), from those of both models.

        With a weight of 0 or 1 the logits of one model are returned as they are.
        """
        if self.weight in (0.0, 1.0):
            return method if self.weight else private
        # In logarithms, because a softmax of one and zeros would have equal zeros.
        own = functional.log_softmax(method.double() / self.method_temperature, dim=1)
        alone = functional.log_softmax(private.double() / self.private_temperature, dim=1)
        return torch.logaddexp(own + math.log(self.weight), alone + math.log1p(-self.weight))


class BlendedModel(nn.Module):
    """Both models of a client as one, which predicts their blend.

    Parameters
    ----------
    method, private : nn.Module
        They are not copied.
    blend : Blend
        Their weights and temperatures.
    """

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
    return Blend(float(b - c > LEAD * math.sqrt(b + c)))


def mixed(method: Tensor, private: Tensor, labels: Tensor) -> Blend:
    """Mix calibrated predictions with the posterior mean of the weight.

    The prediction is linear in a, so it equals the mean of the predictions with each weight of
    `GRID`, weighted by prior and likelihood of the validation labels (Bayesian model averaging).
    """
    if not (method.isfinite().all() and private.isfinite().all()):
        return Blend(0.0)
    temperatures = _temperature(method, labels), _temperature(private, labels)
    scores = torch.tensor(
        [
            PRIOR_EXPONENT * math.log(1 - weight)
            - float(functional.nll_loss(Blend(weight, *temperatures)(method, private), labels))
            * len(labels)
            for weight in GRID
        ],
        dtype=torch.float64,
    )
    posterior = torch.softmax(scores, dim=0)
    mean = float(posterior @ torch.tensor(GRID, dtype=torch.float64))
    return Blend(mean, *temperatures)


def _temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature with the smallest cross-entropy."""
    return min(TEMPERATURES, key=lambda t: float(functional.cross_entropy(logits / t, labels)))


RULES: dict[str, Rule] = {"choose": chosen, "blend": mixed}
"""The rules by the safeguard's mode."""
