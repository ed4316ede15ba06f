"""The search for one method: an Optuna study whose trials are runs that can be extended.

A trial is a choice of settings, run with every tuning seed. It starts with a quarter of the rounds.
Optuna's successive halving stops it there, or lets its runs continue from their checkpoints. So a
promising run is never repeated. What a trial has reached is recorded in the study, and each
decision depends on these records alone. So a study that was killed continues as if it had never
stopped.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.pruners import SuccessiveHalvingPruner
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
from fedkd_flwr.methods import Method, find_method
from fedkd_flwr.runs import RunDirectoryError
from fedkd_flwr.training.loop import batch_starts
from fedkd_flwr.training.settings import TrainingSettings
from fedkd_flwr.tuning.trial_runs import TrialRuns
from strategies.core.flower import log
from strategies.core.metrics import GRADIENT_STEPS
from strategies.core.plan import sample_clients
from strategies.core.settings_groups import SearchRange, SettingsGroup

STEP_SIZE = "learning-rate"  # the setting that every search includes

RANDOM_TRIALS = 8  # trials whose settings are drawn before the sampler proposes any

HALVING = 2
"""One in so many trials continues at a rung, and the rung after it has so many times its rounds."""

Space = dict[str, FloatDistribution | IntDistribution]
"""The values to search of each setting, by its key."""


def search_space(method: Method) -> Space:
    """Return the settings of a method that declare a `SearchRange`, the step size among them."""
    space = {**_declared(TrainingSettings), **_declared(method.record.settings_type)}
    if STEP_SIZE not in space:
        raise ConfigError(
            f"The search space has no {STEP_SIZE}. Declare it with Annotated[float, "
            "SearchRange(low, high, log=True)] in TrainingSettings."
        )
    return space


def _declared(settings: type[SettingsGroup]) -> Space:
    space: Space = {}
    for name, field in settings.model_fields.items():
        ranges = [mark for mark in field.metadata if isinstance(mark, SearchRange)]
        if not ranges:
            continue
        # The last is that of the most derived class.
        low, high, log_scale = ranges[-1].low, ranges[-1].high, ranges[-1].log
        space[settings.key_of(name)] = (
            IntDistribution(int(low), int(high), log=log_scale)
            if field.annotation is int
            else FloatDistribution(low, high, log=log_scale)
        )
    return space


def rungs_of(rounds: int, evaluate_every: int) -> list[int]:
    """Return the rounds at which trials are judged, of those that are evaluated; then the last."""
    early = {max(1, rounds // (share * evaluate_every)) * evaluate_every for share in (4, 2)}
    return [*sorted(rung for rung in early if rung < rounds), rounds]


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


FILE = "study.db"  # SQLite file of a study, in the method's folder

SETTINGS, BUDGET = "settings", "budget"
"""Attributes of a study: what all trials share, and its budget."""

STEPS = GRADIENT_STEPS.name
"""Attribute of a trial: the gradient steps that it has taken so far."""


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
    def rungs(self) -> list[int]:
        """Rounds at which trials are judged, and the last round."""
        rounds, every = self.values["num-server-rounds"], self.values["evaluate-every"]
        return rungs_of(int(rounds), int(every))

    @property
    def runs(self) -> TrialRuns:
        """The runs of the trials."""
        values = {**self.values, "strategy": self.strategy}
        return TrialRuns(values, self.seeds, tuple(self.rungs), self.folder)

    @property
    def space(self) -> Space:
        """What is searched."""
        return search_space(find_method(self.strategy))

    def run(self) -> None:
        """Do trials, as long as the budget allows one with all rounds."""
        study = self.study()
        while trial := self._next_trial(study):
            self._run_trial(study, trial)

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
                pruner=SuccessiveHalvingPruner(min_resource=1, reduction_factor=HALVING),
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
        for key, searched in self.space.items():
            given = float(self.values[key])
            settings[key] = min(max(given, searched.low), searched.high)
            if settings[key] != given:
                log(
                    WARNING,
                    "%s = %g is outside of the range that is searched, %g to %g; the first trial "
                    "of %s uses %g.",
                    *(key, given, searched.low, searched.high, self.strategy, settings[key]),
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

    def settings(self, trial: FrozenTrial) -> dict[str, Scalar]:
        """Return the settings that a trial chose."""
        return {key: _rounded(value) for key, value in trial.params.items()}

    def _next_trial(self, study: Study) -> Trial | None:
        """Return the trial that an interruption left open, else a new one; None at the end."""
        trials = study.get_trials(deepcopy=False)
        begun = [trial for trial in trials if trial.state != TrialState.WAITING]
        is_open = bool(begun) and begun[-1].state == TrialState.RUNNING
        # A sampler for each trial, so that a study continues as if it had never stopped.
        study.sampler = _sampler(self.strategy, len(begun) - is_open)
        if is_open:
            return Trial(study, begun[-1]._trial_id)  # Optuna has no public way
        whole = [t.user_attrs[STEPS] for t in begun if t.state == TrialState.COMPLETE]
        is_affordable = self.budget - steps_taken(begun) >= max([self.steps_of_local, *whole])
        return study.ask() if is_affordable or not begun else None

    def _run_trial(self, study: Study, trial: Trial) -> None:
        """Take a trial from rung to rung until it is pruned. What is recorded already stays."""
        chosen = {key: _rounded(_suggested(trial, key, one)) for key, one in self.space.items()}
        reached = dict(study.get_trials(deepcopy=False)[trial.number].intermediate_values)
        try:
            for place, rung in enumerate(self.rungs):
                step = HALVING**place  # what Optuna takes for the resource of a trial
                if step not in reached:
                    reached[step] = self._advance(trial, chosen, rung)
                    trial.report(reached[step], step)
                if rung != self.rungs[-1] and trial.should_prune():
                    study.tell(trial, state=TrialState.PRUNED)
                    break
            else:
                study.tell(trial, reached[step])
        except ClientCodeError:
            raise
        except (ConfigError, RuntimeError) as error:
            # Settings that cannot work together, or a training that diverged, use up a trial.
            log(WARNING, "%s, trial %d failed: %s", self.strategy, trial.number, error)
            trial.set_user_attr(STEPS, self._steps_of_failure(trial.number))
            study.tell(trial, state=TrialState.FAIL)
        self.runs.remove_checkpoints(trial.number)

    def _advance(self, trial: Trial, chosen: Mapping[str, Scalar], rung: int) -> float:
        """Bring the runs of a trial to a rung; return their mean validation accuracy there."""
        found = [self.runs.advance(trial.number, seed, chosen, rung) for seed in self.seeds]
        trial.set_user_attr(STEPS, sum(steps for _, steps in found))
        return sum(accuracy for accuracy, _ in found) / len(found)

    def _steps_of_failure(self, number: int) -> int:
        """Return what a failed trial is charged: at least the steps of `local` to a first rung."""
        taken = sum(self.runs.steps(run.round_rows) for run in self.runs.of(number))
        return max(taken, self.steps_of_local * self.rungs[0] // self.rungs[-1])


def steps_taken(trials: Iterable[FrozenTrial]) -> int:
    """Return the gradient steps of some trials, as far as they are recorded."""
    return sum(trial.user_attrs.get(STEPS, 0) for trial in trials)


def best_trial(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """Return the trial with the highest value among those that had all rounds, if there is one."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return max(complete, key=lambda trial: float(trial.value or 0.0), default=None)


def _suggested(trial: Trial, key: str, one: FloatDistribution | IntDistribution) -> Scalar:
    if isinstance(one, IntDistribution):
        return trial.suggest_int(key, one.low, one.high, log=one.log)
    return trial.suggest_float(key, one.low, one.high, log=one.log)


def _sampler(strategy: str, number: int) -> TPESampler:
    """Return the sampler of one trial, whose draws depend on the method and the number alone."""
    digest = hashlib.sha256(f"{strategy}/{number}".encode()).digest()
    seed = int.from_bytes(digest[:4], "little")
    return TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS, multivariate=True)


def _rounded(value: Scalar) -> Scalar:
    """Return a number with three digits, which is precise enough and can be read."""
    return float(f"{value:.3g}") if isinstance(value, float) else value
