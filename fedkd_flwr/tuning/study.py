"""The search for one method: an Optuna study whose trials are runs that can be extended.

A trial is a choice of settings, run with every tuning seed. It starts with a few rounds.
Successive halving stops it there, or lets its runs continue from their checkpoints. So a
promising run is never repeated, and a study that was killed continues where it stopped.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from logging import WARNING
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import DatabaseError

from fedkd_flwr import engines
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.flat import Scalar
from fedkd_flwr.methods import find_method
from fedkd_flwr.runs import Run, RunDirectoryError, changeable, load_run, names_of_code
from fedkd_flwr.sweeps.earlier import finished_run, move_aside, rounds_to_continue_from
from fedkd_flwr.tuning.space import Dimension, search_space
from strategies.core.flower import log

REDUCTION = 3
"""Reduction factor: one of three trials continues at a rung."""

RUNGS = (1 / 6, 1 / 2)
"""Shares of the rounds after which a trial may be stopped; earlier stops penalize slow starts."""

RANDOM_TRIALS = 5
"""Random trials before the sampler uses earlier results."""

WIDEN_AFTER = 2 / 3
"""Share of the budget after which a range is widened if the best value lies at its edge."""

FILE = "study.db"
"""SQLite file of a study, in the method's folder."""

SETTINGS = "settings"
"""Attribute of a study: what all its trials share."""


class _RungReachedError(Exception):
    """Stops a run at a rung; its checkpoint lets it continue."""


@dataclass(frozen=True)
class MethodSearch:
    """The search for one method's settings; can be sent to another process.

    Attributes
    ----------
    strategy : str
        Name of the method.
    values : mapping
        The flat run config that all trials share.
    seeds : tuple of int
        The tuning seeds; a trial's value is the mean over them.
    budget : int
        Trials.
    folder : Path
        Where the study and its runs are kept.
    """

    strategy: str
    values: Mapping[str, Scalar]
    seeds: tuple[int, ...]
    budget: int
    folder: Path

    @property
    def rungs(self) -> list[int]:
        """Rounds at which a trial is judged, ascending; the last is all rounds of a run."""
        rounds, every = int(self.values["num-server-rounds"]), int(self.values["evaluate-every"])
        # A rung has to be a round that is evaluated.
        early = [max(every, round(rounds * share / every) * every) for share in RUNGS]
        return [*sorted({rung for rung in early if rung < rounds}), rounds]

    def run(self) -> None:
        """Run the missing trials."""
        study = self.study()
        while (number := self._done(study)) < self.budget:
            # A sampler for each trial, so that a study continues as if it had never stopped.
            study.sampler = _sampler(self.strategy, number)
            trial = self._interrupted(study) or study.ask()
            self._complete(study, trial)

    def study(self) -> Study:
        """Open the study, or begin it with the settings of the run config as its first trial.

        Raises
        ------
        RunDirectoryError
            If its file is damaged.
        ConfigError
            If it was begun with other settings or seeds.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / FILE
        try:
            study = optuna.create_study(
                storage=f"sqlite:///{file}",
                study_name=self.strategy,
                direction="maximize",
                pruner=SuccessiveHalvingPruner(1, reduction_factor=REDUCTION),
                load_if_exists=True,
            )
        except DatabaseError as error:
            raise RunDirectoryError(
                f"{file} cannot be read: {error.orig}. Delete it to search again."
            ) from None
        self._require_same_settings(study)
        if not study.get_trials(deepcopy=False):
            space = search_space(find_method(self.strategy))
            given = {key: float(self.values[key]) for key in space}
            study.enqueue_trial({key: space[key].within(value) for key, value in given.items()})
        return study

    def _require_same_settings(self, study: Study) -> None:
        """Refuse a study whose trials had other settings or seeds; record those of a new one."""
        shared = {**self.values, "strategy": self.strategy, "seed": list(self.seeds)}
        now = defining_settings(shared)
        before = study.user_attrs.get(SETTINGS, now)
        changed = [key for key in sorted({*now, *before}) if now.get(key) != before.get(key)]
        if changed:
            raise ConfigError(
                f"{self.folder} holds a study with another {', '.join(changed)}; choose another "
                "output-dir, or delete the folder."
            )
        study.set_user_attr(SETTINGS, now)

    def space(self, study: Study) -> dict[str, Dimension]:
        """Return the space of the next trial, wider late in a study; see `widened`."""
        return search_space(find_method(self.strategy)) | self.widened(study)

    def widened(self, study: Study) -> dict[str, Dimension]:
        """Return the dimensions that are searched beyond their declared range by now.

        Those are the ones at whose edge the best value lies after two thirds of the budget. They
        depend on the first trials alone, so that every call gives the same.
        """
        first = int(self.budget * WIDEN_AFTER)
        ended = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
        best = best_trial(ended[:first]) if len(ended) >= first else None
        if best is None:
            return {}
        space = search_space(find_method(self.strategy))
        sides = {key: space[key].edge(float(value)) for key, value in best.params.items()}
        return {key: space[key].widened(side) for key, side in sides.items() if side}

    def runs(self, trial: FrozenTrial) -> list[Run]:
        """Return the runs of a trial that have at least one round, one per seed."""
        found = []
        for seed in self.seeds:
            try:
                found.append(load_run(self._path(trial.number, seed)))
            except RunDirectoryError:
                continue
        return found

    def settings(self, trial: FrozenTrial) -> dict[str, Scalar]:
        """Return the settings that a trial chose."""
        return {key: _rounded(value) for key, value in trial.params.items()}

    def _done(self, study: Study) -> int:
        return sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))

    def _interrupted(self, study: Study) -> Trial | None:
        """Return the trial that was interrupted when the process ended, if any."""
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return Trial(study, running[0]._trial_id) if running else None

    def _complete(self, study: Study, trial: Trial) -> None:
        """Run one trial from rung to rung until it is stopped or complete."""
        space = self.space(study)
        chosen = {key: _rounded(space[key].suggest(trial, key)) for key in space}
        for position, rung in enumerate(self.rungs):
            try:
                reached = [self._advance(trial.number, seed, chosen, rung) for seed in self.seeds]
            except (ConfigError, RuntimeError) as error:
                # Settings that cannot work together, or a training that diverged, use up a trial.
                log(WARNING, "%s, trial %d failed: %s", self.strategy, trial.number, error)
                study.tell(trial, state=TrialState.FAIL)
                return
            value = sum(reached) / len(reached)
            # The pruner expects exact powers, and rounds at a rung are rounded.
            trial.report(value, REDUCTION**position)
            if rung < self.rungs[-1] and trial.should_prune():
                study.tell(trial, state=TrialState.PRUNED)
                return
        study.tell(trial, value)

    def _advance(self, number: int, seed: int, chosen: Mapping[str, Scalar], rung: int) -> float:
        """Bring one run of a trial to a rung; return its validation accuracy there."""
        path = self._path(number, seed)
        values = read_config(
            {**self.values, **chosen, "strategy": self.strategy, "seed": seed}
        ).flat()
        is_last = rung == self.rungs[-1]
        stop = partial(_stop_at, None if is_last else rung)
        if not (finished_run(path, values) or (not is_last and _has_rounds(path, rung))):
            try:
                if rounds_to_continue_from(path, values):
                    code = names_of_code(values)
                    engines.resume(path, on_round=stop, allow_code=code, **changeable(values))
                else:
                    move_aside(path)
                    engines.run(values, output_dir=path, on_round=stop)
            except _RungReachedError:
                pass
        return validation_accuracy_at(load_run(path), rung)

    def _path(self, number: int, seed: int) -> Path:
        return self.folder / f"trial-{number:03d}-seed{seed}"


def best_trial(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """Return the trial with the highest value among those that had all rounds, if there is one."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return max(complete, key=lambda trial: float(trial.value or 0.0), default=None)


def validation_accuracy_at(run: Run, rung: int) -> float:
    """Return a run's mean accuracy on validation splits after a round, or where it ended earlier.

    Raises
    ------
    ConfigError
        If no client was evaluated there.
    """
    accuracy = run.round_rows[:rung][-1]["validation_accuracy_mean"]
    if accuracy is None:
        raise ConfigError(f"{run.path.name} has no validation accuracy in round {rung}.")
    return float(accuracy)


def _stop_at(rung: int | None, row: Mapping[str, Any]) -> None:
    if row["round"] == rung:
        raise _RungReachedError


def _has_rounds(path: Path, rung: int) -> bool:
    """Return whether a run has a round already, from before the search was interrupted."""
    try:
        return len(load_run(path).round_rows) >= rung
    except RunDirectoryError:
        return False


def _sampler(strategy: str, number: int) -> TPESampler:
    """Return the sampler of one trial, whose draws depend on the method and the number alone."""
    digest = hashlib.sha256(f"{strategy}/{number}".encode()).digest()
    seed = int.from_bytes(digest[:4], "little")
    return TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS, multivariate=True)


def _rounded(value: Scalar) -> Scalar:
    """Return a number with three digits, which is precise enough and can be read."""
    return float(f"{value:.3g}") if isinstance(value, float) else value
