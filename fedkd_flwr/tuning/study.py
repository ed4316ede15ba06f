"""The search for one method: an Optuna study whose trials are runs that can be extended.

A trial is a choice of settings, run with every tuning seed. It starts with a few rounds. Successive
halving stops it there, or lets its runs continue from their checkpoints. So a promising run is
never repeated. What a trial has reached is recorded in the study, and each decision depends on
these records alone. So a study that was killed continues as if it had never stopped.

Halving is synchronous: all trials of a bracket are judged at a rung before any continues. Judging
them as they come would compare early ones with few others, at a cost that depends on their order.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from logging import WARNING
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import DatabaseError

from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.clients.tracebacks import ClientCodeError
from fedkd_flwr.config import ConfigError, RunConfig, current_config, read_config
from fedkd_flwr.config.run_config import Scalar
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.engines.starting import with_natural_clients
from fedkd_flwr.methods import find_method
from fedkd_flwr.runs import RunDirectoryError
from fedkd_flwr.training.loop import batch_starts
from fedkd_flwr.tuning.space import Dimension, search_space
from fedkd_flwr.tuning.trial_runs import TrialRuns
from strategies.core.flower import log
from strategies.core.metrics import GRADIENT_STEPS
from strategies.core.plan import sample_clients

BRACKET = 8  # trials of a full bracket

EARLY_RUNGS = ((Fraction(1, 18), Fraction(5, 8)), (Fraction(7, 18), Fraction(3, 5)))
"""Share of the rounds at which a bracket is judged, and share of its trials that continue.

Of eight trials five continue, and three have all rounds. Learning curves cross late, so that three
finalists miss less than two that were chosen after more rounds, at the same cost.
"""


def rungs_of(rounds: int, evaluate_every: int) -> dict[int, Fraction]:
    """Return the rounds at which trials are judged, and the share of them that continues."""
    rungs: dict[int, Fraction] = {}
    for when, kept in EARLY_RUNGS:
        rung = max(1, int(rounds * when / evaluate_every)) * evaluate_every
        if rung < rounds:
            rungs[rung] = rungs.get(rung, Fraction(1)) * kept
    return {**rungs, rounds: Fraction(1)}


def ranked(accuracies: Mapping[int, float]) -> list[int]:
    """Return the trials of a rung by falling accuracy, the earlier of equals first."""
    return sorted(accuracies, key=lambda number: (-accuracies[number], number))


def number_continuing(number: int, share: Fraction) -> int:
    """Return how many trials of a rung continue, at least one."""
    return max(1, round(number * share))


def bracket_cost(size: int, continuing: Sequence[Fraction], costs: Sequence[float]) -> float:
    """Return what a bracket costs."""
    total, before, alive = 0.0, 0.0, size
    for share, cost in zip(continuing, costs, strict=True):
        total += alive * (cost - before)
        before, alive = cost, number_continuing(alive, share)
    return total


def largest_bracket(continuing: Sequence[Fraction], costs: Sequence[float], left: float) -> int:
    """Return the size of the largest bracket that costs at most what is left; 0 for none."""
    sizes = range(BRACKET, 0, -1)
    return next((size for size in sizes if bracket_cost(size, continuing, costs) <= left), 0)


BASELINE = "local"  # training alone, which is always a possible answer


def steps_of_local(settings: Mapping[str, Any], seed: int) -> int:
    """Return the gradient steps that all clients of `local` take in a run, without training."""
    configuration = read_config({**settings, "strategy": BASELINE, "seed": seed})
    run = with_natural_clients(configuration).run
    plan = run.plan
    trained = sorted({*range(plan.num_clients)} - {*plan.new_client_ids})
    by_client = {n: _steps_of_round(run, n) for n in trained}
    return sum(
        by_client[n]
        for server_round in range(1, plan.num_server_rounds + 1)
        for n in sample_clients(trained, plan.sample_size, seed, server_round)
    )


def _steps_of_round(run: RunConfig, partition_id: int) -> int:
    """Return the steps of a client in a round: tau random batches if set, else E epochs."""
    training = run.training
    if training.local_iterations:
        return training.local_iterations
    samples = len(load_client(run.data_plan, partition_id).train_labels)
    return training.local_epochs * len(batch_starts(samples, training.batch_size))


WIDEN_AFTER = 1 / 2
"""Share of the budget after which ranges are widened whose edge holds the best value."""

FILE = "study.db"  # SQLite file of a study, in the method's folder

SETTINGS, BUDGET, BRACKETS, WIDENED = "settings", "budget", "brackets", "widened"
"""Attributes of a study: what all trials share, its budget, the sizes of its brackets so far, and
the sides on which ranges were widened."""

ACCURACY, STEPS = "accuracy", GRADIENT_STEPS.name
"""Parts of the record of what a trial has reached at a rung."""


@dataclass(frozen=True)
class MethodSearch:
    """The search for one method's settings; can be sent to another process."""

    strategy: str
    values: Mapping[str, Scalar]
    seeds: tuple[int, ...]
    budget: int
    steps_of_local: int
    folder: Path

    @property
    def rungs(self) -> dict[int, Fraction]:
        """Rounds at which trials are judged, and the share of them that continues."""
        return rungs_of(self.rounds, int(self.values["evaluate-every"]))

    @property
    def rounds(self) -> int:
        """Rounds of a whole run, the last rung."""
        return int(self.values["num-server-rounds"])

    @property
    def runs(self) -> TrialRuns:
        """The runs of the trials."""
        values = {**self.values, "strategy": self.strategy}
        return TrialRuns(values, self.seeds, tuple(self.rungs), self.folder)

    def run(self) -> None:
        """Do the brackets that are missing, as long as the budget allows one."""
        study = self.study()
        brackets: list[int] = list(study.user_attrs.get(BRACKETS, []))
        if brackets:
            self._run_bracket(study, brackets)  # does what an interruption left open
        while size := self._affordable(study):
            self._widen(study)
            brackets.append(size)
            study.set_user_attr(BRACKETS, brackets)
            self._run_bracket(study, brackets)

    def study(self) -> Study:
        """Open the study, or begin it with the settings of the run config as its first trial."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / FILE
        try:
            study = optuna.create_study(
                storage=f"sqlite:///{file}",
                study_name=self.strategy,
                direction="maximize",
                load_if_exists=True,
            )
        except DatabaseError as error:
            raise RunDirectoryError(
                f"{file} cannot be read: {error.orig}. Delete it to search again."
            ) from None
        self._require_same_settings(study)
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial(self._settings_of_first_trial())
        return study

    def _settings_of_first_trial(self) -> dict[str, float]:
        """Return the values of the run config, and say which ones lie outside their range."""
        settings = {}
        for key, dimension in search_space(find_method(self.strategy)).items():
            given = float(self.values[key])
            settings[key] = dimension.within(given)
            if settings[key] != given:
                log(
                    WARNING,
                    "%s = %g is outside of the range that is searched, %g to %g; the first trial "
                    "of %s uses %g.",
                    *(key, given, dimension.low, dimension.high, self.strategy, settings[key]),
                )
        return settings

    def _require_same_settings(self, study: Study) -> None:
        """Refuse a study with other settings or a larger budget; record those of a new one."""
        shared = {**self.values, "strategy": self.strategy, "seed": list(self.seeds)}
        now = defining_settings(shared)
        # What an earlier version did not know has its default.
        before = defining_settings(current_config(study.user_attrs.get(SETTINGS, shared)))
        changed = [key for key in sorted({*now, *before}) if now.get(key) != before.get(key)]
        if changed:
            raise ConfigError(
                f"{self.folder} holds a study with another {', '.join(changed)}; choose another "
                "output-dir, or delete the folder."
            )
        if study.user_attrs.get(BUDGET, 0) > self.budget:
            raise ConfigError(
                f"{self.folder} holds a study with a budget of {study.user_attrs[BUDGET]:,} "
                f"gradient steps, which is more than {self.budget:,}; choose at least that budget, "
                "or another output-dir."
            )
        study.set_user_attr(SETTINGS, now)
        study.set_user_attr(BUDGET, self.budget)

    def space(self, study: Study) -> dict[str, Dimension]:
        """Return the space of the next trial, wider late in a study; see `widened`."""
        return search_space(find_method(self.strategy)) | self.widened(study)

    def widened(self, study: Study) -> dict[str, Dimension]:
        """Return the dimensions that are searched beyond their declared range by now."""
        space = search_space(find_method(self.strategy))
        sides = study.user_attrs.get(WIDENED, {})
        return {key: space[key].widened(side) for key, side in sides.items()}

    def settings(self, trial: FrozenTrial) -> dict[str, Scalar]:
        """Return the settings that a trial chose."""
        return {key: _rounded(value) for key, value in trial.params.items()}

    # ---- The budget ------------------------------------------------------------------

    def _affordable(self, study: Study) -> int:
        trials = study.get_trials(deepcopy=False)
        costs: list[float] = []
        for rung in self.rungs:
            known = [found[STEPS] for trial in trials if (found := _result_at(trial, rung))]
            guess = self.steps_of_local * rung / self.rounds
            # A method may turn out to be costlier after a rung, but no rung is free.
            costs.append(sum(known) / len(known) if known else max([guess, *costs[-1:]]))
        return largest_bracket(list(self.rungs.values()), costs, self.budget - steps_taken(trials))

    def _may_continue(self, study: Study, is_first: bool) -> bool:
        """Return whether a trial may go to the next rung."""
        trials = study.get_trials(deepcopy=False)
        return steps_taken(trials) < self.budget or (is_first and best_trial(trials) is None)

    def _widen(self, study: Study) -> None:
        """Widen, once after half of the budget, the ranges at whose edge the best value lies."""
        trials = study.get_trials(deepcopy=False)
        best = best_trial(trials)
        early = steps_taken(trials) < WIDEN_AFTER * self.budget
        if early or best is None or WIDENED in study.user_attrs:
            return
        space = search_space(find_method(self.strategy))
        sides = {key: space[key].edge(float(value)) for key, value in best.params.items()}
        study.set_user_attr(WIDENED, {key: side for key, side in sides.items() if side})

    # ---- A bracket -------------------------------------------------------------------

    def _run_bracket(self, study: Study, brackets: Sequence[int]) -> None:
        """Take the last bracket from rung to rung. What is recorded already stays."""
        end = sum(brackets)
        chosen = self._settings_of_bracket(study, range(end - brackets[-1], end))
        alive: Sequence[int] = list(chosen)
        for rung, share in self.rungs.items():
            reached = {}
            for number in alive:
                is_first = number == alive[0]
                accuracy = self._accuracy_at(study, number, chosen[number], rung, is_first)
                if accuracy is not None:
                    reached[number] = accuracy
            going_on = ranked(reached)[: number_continuing(len(reached), share)]
            for number in set(alive) - set(going_on):
                study.tell(number, state=TrialState.PRUNED, skip_if_finished=True)
                self.runs.remove_checkpoints(number)
            alive = going_on
        for number in alive:
            study.tell(number, reached[number], skip_if_finished=True)
            self.runs.remove_checkpoints(number)

    def _settings_of_bracket(
        self, study: Study, numbers: Iterable[int]
    ) -> dict[int, dict[str, Scalar]]:
        """Return the settings of the trials of a bracket, which are chosen before any is run."""
        space = self.space(study)
        chosen = {}
        for number in numbers:
            # A sampler for each trial, so that a study continues as if it had never stopped.
            study.sampler = _sampler(self.strategy, number)
            trials = study.get_trials(deepcopy=False)
            begun = number < len(trials) and trials[number].state != TrialState.WAITING
            if begun and trials[number].state.is_finished():
                chosen[number] = self.settings(trials[number])
                continue
            trial = _reopened(study, trials[number]) if begun else study.ask()
            chosen[number] = {key: _rounded(space[key].suggest(trial, key)) for key in space}
        return chosen

    def _accuracy_at(
        self, study: Study, number: int, chosen: Mapping[str, Scalar], rung: int, is_first: bool
    ) -> float | None:
        trial = study.get_trials(deepcopy=False)[number]
        if result := _result_at(trial, rung):
            return float(result[ACCURACY])
        if trial.state.is_finished() or not self._may_continue(study, is_first):
            return None
        open_trial = _reopened(study, trial)
        try:
            reached = [self.runs.advance(number, seed, chosen, rung) for seed in self.seeds]
        except ClientCodeError:
            raise
        except (ConfigError, RuntimeError) as error:
            # Settings that cannot work together, or a training that diverged, use up a trial.
            log(WARNING, "%s, trial %d failed: %s", self.strategy, number, error)
            open_trial.set_user_attr("failed", {STEPS: self._steps_of_failure(trial)})
            study.tell(number, state=TrialState.FAIL)
            return None
        accuracy = sum(run_accuracy for run_accuracy, _ in reached) / len(reached)
        open_trial.report(accuracy, rung)
        steps = sum(run_steps for _, run_steps in reached)
        open_trial.set_user_attr(str(rung), {ACCURACY: accuracy, STEPS: steps})
        return accuracy

    def _steps_of_failure(self, trial: FrozenTrial) -> int:
        """Return what a failed trial is charged: at least the steps of `local` to a first rung."""
        taken = sum(self.runs.steps(run.round_rows) for run in self.runs.of(trial.number))
        return max(taken, self.steps_of_local * min(self.rungs) // self.rounds)


def steps_taken(trials: Iterable[FrozenTrial]) -> int:
    """Return the gradient steps of some trials, as far as they are recorded."""
    return sum(max((result[STEPS] for result in t.user_attrs.values()), default=0) for t in trials)


def _result_at(trial: FrozenTrial, rung: int) -> dict[str, Any]:
    return trial.user_attrs.get(str(rung), {})


def _reopened(study: Study, trial: FrozenTrial) -> Trial:
    """Return a trial that has begun, to go on with it; Optuna has no public way."""
    return Trial(study, trial._trial_id)


def best_trial(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """Return the trial with the highest value among those that had all rounds, if there is one."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return max(complete, key=lambda trial: float(trial.value or 0.0), default=None)


def _sampler(strategy: str, number: int) -> TPESampler:
    """Return the sampler of one trial, whose draws depend on the method and the number alone."""
    digest = hashlib.sha256(f"{strategy}/{number}".encode()).digest()
    seed = int.from_bytes(digest[:4], "little")
    return TPESampler(seed=seed, n_startup_trials=BRACKET, multivariate=True, constant_liar=True)


def _rounded(value: Scalar) -> Scalar:
    """Return a number with three digits, which is precise enough and can be read."""
    return float(f"{value:.3g}") if isinstance(value, float) else value
