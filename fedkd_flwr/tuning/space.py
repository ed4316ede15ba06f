"""The search space of a method: its settings with a declared range, and the step size."""

import math
from dataclasses import dataclass, replace

from annotated_types import Ge, Gt, Le, Lt
from optuna.trial import Trial
from pydantic.fields import FieldInfo

from fedkd_flwr.config import ConfigError
from fedkd_flwr.config.run_config import Scalar
from fedkd_flwr.methods import Method
from fedkd_flwr.training.settings import TrainingSettings
from strategies.core.settings_groups import SearchRange, SettingsGroup

STEP_SIZE = "learning-rate"  # the setting that every search includes
EDGE = 0.1  # a value in the first or last tenth of a range lies at its edge
WIDER = 0.5  # by which share of its width a range grows on the side of the edge


@dataclass(frozen=True)
class Dimension:
    """One setting of a search."""

    low: float
    high: float
    log: bool
    whole: bool
    least: float = -math.inf
    most: float = math.inf

    def suggest(self, trial: Trial, key: str) -> Scalar:
        """Return the value that the sampler chooses."""
        if self.whole:
            return trial.suggest_int(key, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(key, self.low, self.high, log=self.log)

    def within(self, value: float) -> float:
        """Return the nearest value of the range."""
        return min(max(value, self.low), self.high)

    def edge(self, value: float) -> str:
        """Return the edge at which a value lies, ``low`` or ``high``, or an empty text."""
        scaled = math.log if self.log else float
        low, high = scaled(self.low), scaled(self.high)
        share = (scaled(value) - low) / (high - low)
        if share <= EDGE and self.low > self.least:
            return "low"
        return "high" if share >= 1 - EDGE and self.high < self.most else ""

    def widened(self, side: str) -> "Dimension":
        """Return the dimension with more room on one side, within the setting's limits."""
        if self.log:
            factor = (self.high / self.low) ** WIDER
            low, high = self.low / factor, self.high * factor
        else:
            room = (self.high - self.low) * WIDER
            low, high = self.low - room, self.high + room
        if self.whole:
            low, high = math.floor(low), math.ceil(high)
        if side == "low":
            return replace(self, low=max(low, self.least))
        return replace(self, high=min(high, self.most))


def search_space(method: Method) -> dict[str, Dimension]:
    """Return the settings of a method that declare a `SearchRange`, the step size among them."""
    space = {**_declared(TrainingSettings), **_declared(method.record.settings_type)}
    if STEP_SIZE not in space:
        raise ConfigError(
            f"The search space has no {STEP_SIZE}. Declare it with Annotated[float, "
            "SearchRange(low, high, log=True)] in TrainingSettings."
        )
    return space


def _declared(settings: type[SettingsGroup]) -> dict[str, Dimension]:
    space = {}
    for name, field in settings.model_fields.items():
        ranges = [mark for mark in field.metadata if isinstance(mark, SearchRange)]
        if ranges:
            # The last is that of the most derived class.
            space[settings.key_of(name)] = _dimension(field, ranges[-1])
    return space


def _dimension(field: FieldInfo, found: SearchRange) -> Dimension:
    whole = field.annotation is int
    least, most = -math.inf, math.inf
    for limit in field.metadata:
        if isinstance(limit, Ge):
            least = max(least, float(limit.ge))  # type: ignore[arg-type]
        if isinstance(limit, Gt):
            least = max(least, _after(float(limit.gt), found.low, 1))  # type: ignore[arg-type]
        if isinstance(limit, Le):
            most = min(most, float(limit.le))  # type: ignore[arg-type]
        if isinstance(limit, Lt):
            most = min(most, _after(float(limit.lt), found.high, -1))  # type: ignore[arg-type]
    return Dimension(found.low, found.high, found.log, whole, least, most)


def _after(limit: float, inside: float, sign: int) -> float:
    """Return a value inside an open limit, a thousandth of the way to a value of the range."""
    return limit + sign * abs(inside - limit) / 1000
