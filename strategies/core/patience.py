"""Early stopping: how long a run waits for a better accuracy on validation data."""

from collections.abc import Mapping
from dataclasses import dataclass
from logging import INFO
from typing import Any

from strategies.core.flower import log
from strategies.core.plan import RunPlan


class StoppedEarly(Exception):  # noqa: N818 - nothing has gone wrong
    """Ends a run after its last round, where that comes before the planned one."""


@dataclass
class Patience:
    """Follows the mean validation accuracy from evaluation to evaluation.

    Attributes
    ----------
    evaluations : int
        Evaluations in a row without a better one after which it is at an end; 0 for never.
    best : float
        Best accuracy so far.
    best_round : int
        The round that had it, the first of equals; 0 before there is one.
    waited : int
        Evaluations since then.
    """

    evaluations: int
    best: float = -1.0
    best_round: int = 0
    waited: int = 0

    def end_of(self, plan: RunPlan, row: Mapping[str, Any]) -> RunPlan:
        """Take note of a round's row, and end the run with the next round where it is time.

        That round is done as every last one is: all are evaluated, models are exported.

        Parameters
        ----------
        plan : RunPlan
            Of the run so far.
        row : mapping
            Of the run's table of rounds.

        Returns
        -------
        RunPlan
            The same, or one with fewer rounds.
        """
        # The last round of a run that has grown may be none that it would else have evaluated.
        if plan.is_evaluated(row["round"]):
            self.note(row["round"], row.get("validation_accuracy_mean"))
        last: int = row["round"] + 1
        if not self.is_over or last >= plan.num_server_rounds:
            return plan
        log(INFO, "Round %d is the last: no better validation accuracy in %d", last, self.waited)
        return plan.model_copy(update={"num_server_rounds": last})

    def note(self, server_round: int, accuracy: float | None) -> None:
        """Take note of an evaluation; None where there was none."""
        if accuracy is None:
            return
        self.waited += 1
        if accuracy > self.best:
            self.best, self.best_round, self.waited = accuracy, server_round, 0

    @property
    def is_over(self) -> bool:
        """Whether a better accuracy has been waited for long enough."""
        return 0 < self.evaluations <= self.waited
