"""Tune several methods with equal budgets: a table, a sweep file, figures."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w
from optuna.trial import FrozenTrial, TrialState
from statsmodels.stats.proportion import proportion_confint

from fedkd_flwr.config import ConfigError, Configuration, read_config, require_importable
from fedkd_flwr.config.run_config import Scalar
from fedkd_flwr.data.registry import DATA
from fedkd_flwr.data.splits import read_split
from fedkd_flwr.engines import with_absolute_folders
from fedkd_flwr.models.estimators import names_estimator
from fedkd_flwr.runs import Run, RunDirectoryError, absolute, require_writable
from fedkd_flwr.sweeps.parallel_calls import call_in_parallel
from fedkd_flwr.tuning.study import (
    BASELINE,
    MethodSearch,
    best_trial,
    search_space,
    steps_of_local,
    steps_taken,
)

SWEEP_FILE = "chosen.toml"  # sweep of the chosen settings, in the folder of a tuning
PATHS = (*DATA, "data-root", "models-dir", "state-dir")  # settings that may hold a path


@dataclass(frozen=True)
class Tuned:
    """What the search for one method found.

    `low` and `high` are a 95% Wilson interval of the mean validation accuracy over clients and
    seeds. It says how precisely validation samples measure, not how seeds vary. `steps` are those
    of all trials and seeds, of a `budget`; `run_steps` and `bytes` those of a run with the best
    settings.
    """

    strategy: str
    settings: dict[str, Scalar]
    accuracy: float
    low: float
    high: float
    trials: int
    stopped: int
    failed: int
    steps: int
    budget: int
    run_steps: int
    bytes: int
    notes: list[str]


@dataclass(frozen=True)
class Tuning:
    """A finished tuning."""

    methods: list[Tuned]
    sweep: Path
    searches: list[MethodSearch]

    @property
    def table(self) -> pd.DataFrame:
        """One row for each method, the best first, with the fields of `Tuned` as columns."""
        return pd.DataFrame([vars(method) for method in self.methods]).set_index("strategy")


def tune(
    settings: Mapping[str, Any],
    methods: Sequence[str],
    output_dir: str | Path,
    *,
    budget: int = 27,
    seeds: int = 2,
    fresh_seeds: int = 10,
    jobs: int = 1,
    on_method: Callable[[str], None] | None = None,
) -> Tuning:
    """Search for the best settings of several methods on validation data, under the same rules."""
    numbers = {"budget": budget, "seeds": seeds, "jobs": jobs, "fresh-seeds": fresh_seeds}
    for name, number in numbers.items():
        if number < 1:
            raise ConfigError(f"{name} = {number}: it should be at least 1.")
    folder = absolute(output_dir)
    require_writable(folder, "folder of the tuning")
    names = list(dict.fromkeys([BASELINE, *methods]))
    configurations = {name: _checked(settings, name) for name in names}
    steps_of_trial = sum(steps_of_local(settings, seed) for seed in range(seeds))
    searches = [
        MethodSearch(
            strategy=name,
            values=_values_of_trials(configuration),
            seeds=tuple(range(seeds)),
            budget=budget * steps_of_trial,
            steps_of_local=steps_of_trial,
            folder=folder / name.replace(":", "-"),
        )
        for name, configuration in configurations.items()
    ]
    for search in searches:
        search.study()  # refuses a folder that does not fit before any method is searched
    tell = on_method or (lambda name: None)
    for name in _searched(searches, jobs):
        tell(name)
    found = sorted((_tuned(search) for search in searches), key=lambda tuned: -tuned.accuracy)
    sweep = folder / SWEEP_FILE
    found_anywhere = _with_whole_paths(settings, configurations[BASELINE])
    sweep.write_text(_sweep_text(found_anywhere, found, range(seeds, seeds + fresh_seeds)))
    return Tuning(found, sweep, searches)


def _values_of_trials(configuration: Configuration) -> dict[str, Scalar]:
    values = with_absolute_folders(configuration.without_unread()).flat()
    own_folders: dict[str, Scalar] = {"models-dir": "", "state-dir": "", "keep-best": False}
    return {**values, "evaluated-split": "validation", **own_folders}


def _checked(settings: Mapping[str, Any], name: str) -> Configuration:
    """Return the config of a method, after checking that it can be searched."""
    configuration = read_config({**settings, "strategy": name})
    search_space(configuration.run.method)
    split = configuration.run.data.split
    if not min(read_split(split)[1]):
        raise ConfigError(
            f"client-split = {split!r} has no validation data to choose settings by; "
            "set it to something like 70/10/20."
        )
    estimators = [model for model in configuration.run.models.models if names_estimator(model)]
    if estimators:
        raise ConfigError(
            f"models = {estimators[0]} has no gradient steps, by which a search is limited; "
            "tune networks alone."
        )
    return configuration


def _searched(searches: Sequence[MethodSearch], jobs: int) -> Iterable[str]:
    if jobs == 1:
        for search in searches:
            search.run()
            yield search.strategy
        return
    for search in searches:
        require_importable(read_config(search.values), "parallel searches have")
    for search, outcome in call_in_parallel(MethodSearch.run, searches, jobs, cpus=1):
        if isinstance(outcome, Exception):
            raise ConfigError(f"The search for {search.strategy} failed: {outcome}") from outcome
        yield search.strategy


def _tuned(search: MethodSearch) -> Tuned:
    trials = search.study().get_trials(deepcopy=False)
    ended = [trial for trial in trials if trial.state.is_finished()]
    best = best_trial(ended)
    if best is None:
        raise ConfigError(
            f"None of the {len(ended)} trials of {search.strategy} could be completed; the log "
            f"says why, and {search.folder} holds the runs."
        )
    states = [trial.state for trial in ended]
    best_runs = search.runs.of(best.number)
    if len(best_runs) < len(search.seeds):
        raise RunDirectoryError(
            f"Runs of the best trial of {search.strategy}, number {best.number}, were deleted from "
            f"{search.folder}; delete the folder to search again."
        )
    accuracy = float(best.value or 0.0)
    low, high = _interval(accuracy, best_runs)
    best_rows = best_runs[0].round_rows
    return Tuned(
        strategy=search.strategy,
        settings=search.settings(best),
        accuracy=accuracy,
        low=low,
        high=high,
        trials=len(ended),
        stopped=states.count(TrialState.PRUNED),
        failed=states.count(TrialState.FAIL),
        steps=steps_taken(ended),
        budget=search.budget,
        run_steps=sum((run.summary or {})["gradient_steps"] for run in best_runs) // len(best_runs),
        bytes=sum(int(row["bytes_up"] + row["bytes_down"]) for row in best_rows),
        notes=_notes(search, best),
    )


def _interval(accuracy: float, runs: Sequence[Run]) -> tuple[float, float]:
    """Return the Wilson interval of a trial's mean validation accuracy over clients and seeds."""
    # Its number of samples is Kish's effective one for unequal weights: a client with n samples has
    # the variance p(1 - p) / n, and so has the mean over clients with this number of samples.
    inverse = 0.0
    for run in runs:
        clients = run.clients
        sizes = clients.loc[clients["round"] == clients["round"].max(), "validation_total"].dropna()
        inverse += float((1 / sizes).mean()) / len(sizes)
    samples = len(runs) ** 2 / inverse
    low, high = proportion_confint(accuracy * samples, samples, method="wilson")
    return float(low), float(high)


EDGE = 0.1  # a value in the first or last tenth of a range lies at its edge


def _notes(search: MethodSearch, best: FrozenTrial) -> list[str]:
    trials = [t for t in search.study().get_trials(deepcopy=False) if t.state.is_finished()]
    complete = sum(trial.state is TrialState.COMPLETE for trial in trials)
    notes = [
        f"One of {len(trials)} trials had all rounds: earlier rounds alone chose it. Give the "
        "search a larger budget."
    ] * (complete == 1 < len(trials))
    for key, searched in search.space.items():
        scaled = math.log if searched.log else float
        low, value, high = map(scaled, (searched.low, best.params[key], searched.high))
        if not EDGE < (value - low) / (high - low) < 1 - EDGE:
            notes.append(
                f"{key} = {best.params[key]:.3g} is at the edge of the range that was searched, "
                f"{searched.low:g} to {searched.high:g}."
            )
    return notes


def _with_whole_paths(settings: Mapping[str, Any], configuration: Configuration) -> dict[str, Any]:
    whole = with_absolute_folders(configuration).flat()
    return {key: whole[key] if key in PATHS else value for key, value in settings.items()}


def _sweep_text(settings: Mapping[str, Any], found: Iterable[Tuned], seeds: Iterable[int]) -> str:
    shared = {key: value for key, value in settings.items() if key not in ("strategy", "seed")}
    combinations = [{"strategy": tuned.strategy, **tuned.settings} for tuned in found]
    content = {"base": shared, "grid": {"seed": list(seeds), "combinations": combinations}}
    remark = "# Each method with the settings that validation data chose; the seeds are fresh.\n"
    return remark + tomli_w.dumps(content)
