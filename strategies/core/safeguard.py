"""The safeguard: each client also trains alone, and would deploy the better model or a blend.

A method may give a client less than it reaches alone. A client with a safeguard trains a private
model beside that of the method, as the method `local` would. Validation data choose one of both
models, or the coefficients of a sum of their logits. Nothing of the private model is sent. The
server learns the counts of an evaluation, and the weight of the method's model.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from strategies.core.optional_metrics import LARGEST_COUNT
from strategies.core.replies import InvalidReplyError, Metric
from strategies.core.settings_groups import ANY_ON_NODES, OnNodes, SettingsGroup


class SafeguardSettings(SettingsGroup):
    """A private model of each client beside the method's, and how both are weighed.

    Attributes
    ----------
    mode : str
        What a client would deploy: ``none`` for the method's model alone, ``choose`` for the
        better of this and its private model, ``blend`` for a weighted sum of their logits.
        Validation data decide.
    learning_rate : float
        Learning rate of the private model; 0 for ``learning-rate``.
    momentum : float
        Momentum of the private model; -1 for ``momentum``.
    """

    mode: Annotated[Literal["none", "choose", "blend"], ANY_ON_NODES] = "none"
    learning_rate: Annotated[float, OnNodes(0, 1)] = Field(default=0.0, ge=0)
    momentum: Annotated[float, OnNodes(-1, 0.99)] = Field(default=-1.0, ge=-1, lt=1)

    @classmethod
    def key_of(cls, name: str) -> str:
        """Return the flat key of a field."""
        return "safeguard" if name == "mode" else f"safeguard-{super().key_of(name)}"

    @property
    def is_on(self) -> bool:
        """Whether clients train a private model."""
        return self.mode != "none"

    def check(self, noise_multiplier: float) -> None:
        """Refuse a safeguard beside DP-SGD, by the noise multiplier of the training.

        Raises
        ------
        ValueError
            If both are on: the counts of an evaluation would be of a model without noise.
        """
        if self.is_on and noise_multiplier:
            raise ValueError(
                f"safeguard = {self.mode} reports counts of a model that is trained without noise, "
                "which dp-sgd-noise-multiplier does not cover; set safeguard = none."
            )


SAFEGUARDED_CORRECT = "safeguarded-correct"
"""Metric: test images that the client's deployed prediction gets right."""

PRIVATE_CORRECT = "private-correct"
"""Metric: test images that its private model gets right."""

SAFEGUARDED_LOST = "safeguarded-lost"
"""Metric: test images that its private model gets right, and the deployed prediction does not."""

METHOD_LOST = "method-lost"
"""Metric: test images that its private model gets right, and the method's model does not."""

SAFEGUARD_WEIGHT = "safeguard-weight"
"""Metric: the share of the method's model in the deployed prediction, in [0, 1]."""

SAFEGUARD_METRICS = (
    *(
        Metric(name, averaged=False, low=0, high=LARGEST_COUNT)
        for name in (SAFEGUARDED_CORRECT, PRIVATE_CORRECT, SAFEGUARDED_LOST, METHOD_LOST)
    ),
    Metric(SAFEGUARD_WEIGHT, averaged=False, low=0, high=1),
)
"""What an evaluation with a safeguard reports besides."""

SAFEGUARD_COLUMNS = ("safeguarded_accuracy", "private_accuracy", "safeguard_weight")
"""Columns of an evaluation whose means over clients are in the round's row, if reported."""


def check_safeguarded(metrics: Mapping[str, float]) -> None:
    """Refuse impossible counts of a safeguard.

    Parameters
    ----------
    metrics : mapping of str to float
        ``correct`` and ``total``, which have been checked if reported. Those of a safeguard are
        optional.

    Raises
    ------
    InvalidReplyError
        If one is missing, or they contradict each other.
    """
    reported = [metric.name for metric in SAFEGUARD_METRICS if metric.name in metrics]
    if not reported:
        return
    if not {"correct", "total"} <= metrics.keys():
        raise InvalidReplyError(f"reports {', '.join(reported)} without the total counts")
    if len(reported) < len(SAFEGUARD_METRICS):
        raise InvalidReplyError(f"reports {', '.join(reported)} without the rest of its safeguard")
    pairs = ((SAFEGUARDED_CORRECT, SAFEGUARDED_LOST), ("correct", METHOD_LOST))
    if not all(_fit(metrics, right, lost) for right, lost in pairs):
        raise InvalidReplyError("reports counts of its safeguard that contradict each other")


def _fit(metrics: Mapping[str, float], right_name: str, lost_name: str) -> bool:
    """Return whether counts of a model agree with those of the private model."""
    right, private, lost = metrics[right_name], metrics[PRIVATE_CORRECT], metrics[lost_name]
    won = right - private + lost
    return (
        all(count == int(count) for count in (right, private, lost))
        and max(right, private) <= metrics["total"]
        and lost <= private
        and 0 <= won <= metrics["total"] - private
    )


def safeguarded_accuracies(metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return the accuracies of a safeguard, by column; empty for an evaluation without one."""
    if SAFEGUARDED_CORRECT not in metrics:
        return {}
    return {
        "safeguarded_accuracy": metrics[SAFEGUARDED_CORRECT] / metrics["total"],
        "private_accuracy": metrics[PRIVATE_CORRECT] / metrics["total"],
    }
