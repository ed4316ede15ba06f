"""Early stopping on mean validation accuracy."""

from collections.abc import Mapping
from dataclasses import dataclass
from logging import INFO
from typing import Any

from strategies.core.flower import log
from strategies.core.plan import RunPlan


class StoppedEarly(Exception):  # noqa: N818 - not an error
    """Ends a run before its planned number of rounds."""


@dataclass
class EarlyStopping:
    """The best mean validation accuracy, and how many evaluations have passed since."""

    evaluations: int
    best: float = -1.0
    best_round: int = 0
    waited: int = 0

    def end_of(self, plan: RunPlan, row: Mapping[str, Any]) -> RunPlan:
        """Record a round's row; return the plan, with one more round if it no longer improves.

        That round is done like any last round: all clients are evaluated, models are exported.
        """
        # The last round of a run that was extended may not be one of those evaluated regularly.
        if plan.is_evaluated(row["round"]):
            self.note(row["round"], row.get("validation_accuracy_mean"))
        last: int = row["round"] + 1
        if not self.is_over or last >= plan.num_server_rounds:
            return plan
        log(INFO, "Early stopping after round %d: no better validation accuracy in %d evaluations",
            last, self.waited)  # fmt: skip
        return plan.model_copy(update={"num_server_rounds": last})

    def note(self, server_round: int, accuracy: float | None) -> None:
        """Record the accuracy of an evaluation; None if there was none."""
        if accuracy is None:
            return
        self.waited += 1
        if accuracy > self.best:
            self.best, self.best_round, self.waited = accuracy, server_round, 0

    @property
    def is_over(self) -> bool:
        """Whether the patience is exhausted."""
        return 0 < self.evaluations <= self.waited
