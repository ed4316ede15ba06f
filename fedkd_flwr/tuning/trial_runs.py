"""The runs of a search's trials, one for each tuning seed, which go from rung to rung."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedkd_flwr import engines
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.config.run_config import Scalar
from fedkd_flwr.runs import (
    Run,
    RunDirectoryError,
    changeable,
    load_run,
    names_of_code,
    prefers_distilled,
    remove_checkpoint,
)
from fedkd_flwr.runs.provenance import changed_code
from fedkd_flwr.sweeps.folder import finished_run, move_aside, rounds_to_continue_from, run_with
from strategies.core.metrics import FINE_TUNING_STEPS, GRADIENT_STEPS


class _RungReachedError(Exception):
    """Stops a run at a rung; its checkpoint lets it continue."""


@dataclass(frozen=True)
class TrialRuns:
    """The runs of a search; can be sent to another process."""

    values: Mapping[str, Scalar]
    seeds: tuple[int, ...]
    rungs: Collection[int]
    folder: Path

    def path(self, number: int, seed: int) -> Path:
        """Return the directory of a run, which may be missing."""
        return self.folder / f"trial-{number:03d}-seed{seed}"

    def of(self, number: int) -> list[Run]:
        """Return the runs of a trial that have at least one round."""
        found = []
        for seed in self.seeds:
            try:
                found.append(load_run(self.path(number, seed)))
            except RunDirectoryError:
                continue
        return found

    def advance(
        self, number: int, seed: int, chosen: Mapping[str, Scalar], rung: int
    ) -> tuple[float, int]:
        """Bring one run of a trial to a rung; return its validation accuracy and steps there."""
        path = self.path(number, seed)
        changed = {**chosen, "seed": seed, "output-dir": str(path)}
        configuration = engines.with_natural_clients(read_config({**self.values, **changed}))
        values = configuration.flat()
        is_last = rung == max(self.rungs)
        stop = partial(_stop_at, None if is_last else rung)
        if not (finished_run(path, values) or (not is_last and _has_rounds(path, values, rung))):
            try:
                if rounds_to_continue_from(path, values):
                    code = names_of_code(values)
                    engines.resume(path, on_round=stop, allow_code=code, **changeable(values))
                else:
                    move_aside(path)
                    engines.run_configuration(configuration, on_round=stop)
            except _RungReachedError:
                pass
        run = load_run(path)
        return validation_accuracy_at(run, rung), self.steps(run.round_rows[:rung])

    def steps(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Return the gradient steps of some rounds, and of fine-tuning before they were judged."""
        fine_tuning = FINE_TUNING_STEPS.column
        return sum(
            _steps_with_failures(row)
            + (row.get(fine_tuning, 0) if row["round"] in self.rungs else 0)
            for row in rows
        )

    def remove_checkpoints(self, number: int) -> None:
        """Remove the checkpoints of a trial that has ended, to save space."""
        for seed in self.seeds:
            remove_checkpoint(self.path(number, seed))


def validation_accuracy_at(run: Run, rung: int) -> float:
    """Return a run's mean validation accuracy after a round, or where it ended earlier.

    At the end it is that of the moment whose models are exported.
    """
    moment = "distilled_" if prefers_distilled(run) else ""
    accuracy = run.round_rows[:rung][-1].get(f"{moment}validation_accuracy_mean")
    if accuracy is None:
        raise ConfigError(f"{run.path.name} has no validation accuracy in round {rung}.")
    return float(accuracy)


def _steps_with_failures(row: Mapping[str, Any]) -> int:
    """Return the steps of a round. A client that failed counts like the mean one that replied."""
    steps, replies = row[GRADIENT_STEPS.column], row["replies"]
    return round(steps * (replies + row["failures"]) / replies) if replies else 0


def _stop_at(rung: int | None, row: Mapping[str, Any]) -> None:
    if row["round"] == rung:
        raise _RungReachedError


def _has_rounds(path: Path, values: Mapping[str, Any], rung: int) -> bool:
    """Return whether a run has a round already, from before the search was interrupted."""
    run = run_with(path, values)
    return run is not None and len(run.round_rows) >= rung and not changed_code(run, values)
