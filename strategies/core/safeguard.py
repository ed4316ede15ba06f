"""The safeguard: each client also trains alone, and would deploy the better model or a blend.

Validation data choose. Nothing of the private model is sent but the counts of an evaluation, and
the weight of the method's model.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from strategies.core.declarations import Data
from strategies.core.metrics import LARGEST_COUNT, EvaluatedModel, metric_name
from strategies.core.replies import InvalidReplyError, Metric
from strategies.core.settings_groups import ANY_ON_NODES, OnNodes, SettingsGroup


class SafeguardSettings(SettingsGroup):
    """A private model of each client beside the method's, and how both are weighed."""

    mode: Annotated[Literal["none", "choose", "blend"], ANY_ON_NODES] = "none"
    """What a client would deploy: ``none`` for the method's model alone, ``choose`` for the better
    of this and its private model, ``blend`` for a weighted sum of their logits. Validation data
    decide."""
    learning_rate: Annotated[float, OnNodes(0, 1)] = Field(default=0.0, ge=0)
    """Learning rate of the private model; 0 for ``learning-rate``."""
    momentum: Annotated[float, OnNodes(-1, 0.99)] = Field(default=-1.0, ge=-1, lt=1)
    """Momentum of the private model; -1 for ``momentum``."""

    @classmethod
    def key_of(cls, name: str) -> str:
        """Return the flat key of a field."""
        return "safeguard" if name == "mode" else f"safeguard-{super().key_of(name)}"

    @property
    def is_on(self) -> bool:
        """Whether clients train a private model."""
        return self.mode != "none"

    def check(self, noise_multiplier: float) -> None:
        """Refuse a safeguard beside DP-SGD, which does not cover its counts."""
        if self.is_on and noise_multiplier:
            raise ValueError(
                f"safeguard = {self.mode} reports counts of a model that is trained without noise, "
                "which dp-sgd-noise-multiplier does not cover; set safeguard = none."
            )


GUARDED: tuple[EvaluatedModel, ...] = ("private", "deployed")
"""What is evaluated beside the method's model: the private model, and the deployed prediction."""

SAFEGUARDED_LOST = "safeguarded-lost"
"""Metric: test images that its private model gets right, and the deployed prediction does not."""

METHOD_LOST = "method-lost"
"""Metric: test images that its private model gets right, and the method's model does not."""

SAFEGUARD_WEIGHT = "safeguard-weight"
"""Metric: the share of the method's model in the deployed prediction, in [0, 1]."""

_number = partial(Metric, averaged=False, low=0, through_model=True)
SAFEGUARD_METRICS = (
    _number(SAFEGUARDED_LOST, high=LARGEST_COUNT, inputs=(Data.TEST,)),
    _number(METHOD_LOST, high=LARGEST_COUNT, inputs=(Data.TEST,)),
    _number(SAFEGUARD_WEIGHT, high=1, inputs=(Data.VALIDATION,)),
)
"""What an evaluation with a safeguard reports besides the counts of its models."""

SAFEGUARD_COLUMNS = ("safeguarded_accuracy", "private_accuracy", "safeguard_weight")
"""Columns of a client that a comparison shows."""


def check_safeguarded(metrics: Mapping[str, float]) -> None:
    """Refuse missing or contradictory numbers of a safeguard, in metrics with checked counts."""
    counts = [metric_name(model, "test", "correct") for model in ("own", *GUARDED)]
    of_safeguard = [*counts[1:], *(metric.name for metric in SAFEGUARD_METRICS)]
    reported = [name for name in of_safeguard if name in metrics]
    if not reported:
        return
    if missing := [name for name in (*counts, *of_safeguard) if name not in metrics]:
        raise InvalidReplyError(f"reports {', '.join(reported)} of its safeguard, not {missing[0]}")
    own, private, deployed = (metrics[name] for name in counts)
    total = metrics[metric_name("own", "test", "total")]
    lost = {SAFEGUARDED_LOST: deployed, METHOD_LOST: own}
    if not all(_fit(right, private, metrics[name], total) for name, right in lost.items()):
        raise InvalidReplyError("reports counts of its safeguard that contradict each other")


def _fit(right: float, private: float, lost: float, total: float) -> bool:
    """Return whether a model can lose so many of the private model's correct predictions."""
    won = right - private + lost
    return lost == int(lost) and 0 <= lost <= private and 0 <= won <= total - private
