"""Tuning: the space, halving, equal budgets, and a study that continues where it was stopped."""

import multiprocessing
import os
import signal
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import numpy as np
import pandas as pd
import pytest
from conftest import SMALL
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState
from statsmodels.stats.proportion import proportion_confint

from fedkd_flwr import engines
from fedkd_flwr.cli.tuning import answer
from fedkd_flwr.clients.base import PersonalClient
from fedkd_flwr.clients.tracebacks import ClientCodeError
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.custom_objects.naming import register
from fedkd_flwr.data.clients import ClientData, client_parts
from fedkd_flwr.methods import METHODS
from fedkd_flwr.runs import RunDirectory, load_run
from fedkd_flwr.sweeps import read_sweep
from fedkd_flwr.tuning import Tuned, tune
from fedkd_flwr.tuning import study as studies
from fedkd_flwr.tuning.study import STEP_SIZE, rungs_of, search_space, steps_of_local
from fedkd_flwr.tuning.trial_runs import TrialRuns, validation_accuracy_at
from fedkd_flwr.tuning.tuning import _interval, _notes
from strategies.base import PersonalizedStrategy
from strategies.core.plan import Settings
from strategies.core.settings_groups import SearchRange

BASE = {
    **SMALL,
    "models": "mlp",
    "max-samples": 200,
    "num-server-rounds": 6,
    "batch-size": 32,
    "evaluate-every": 1,
}


@pytest.fixture
def base():
    return dict(BASE)


def a_search(values, folder, budget, steps_of_local=1):
    return studies.MethodSearch("local", values, (0,), budget, steps_of_local, folder)


def chosen(tuning):
    return {tuned.strategy: tuned.settings for tuned in tuning.methods}


# ---- The space -----------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_tuned_over_the_step_size_and_settings_it_reads(name):
    space = search_space(METHODS[name])
    keys = METHODS[name].record.settings_type.flat_keys()
    assert STEP_SIZE in space
    assert set(space) - {STEP_SIZE} <= set(keys)
    assert all(dimension.low < dimension.high for dimension in space.values())


class MySettings(Settings):
    table = "mine"
    sharpness: Annotated[float, SearchRange(1.0, 100.0, log=True)] = 10.0


class Mine(PersonalizedStrategy):
    record = PersonalizedStrategy.record.derived(settings_type=MySettings)


def test_a_custom_method_is_tuned_over_the_ranges_that_it_declares(base, tmp_path):
    mine = register("mine", Mine, PersonalClient)
    assert search_space(mine)["mine.sharpness"] == FloatDistribution(1.0, 100.0, log=True)
    tuning = tune({**base, "num-server-rounds": 1}, ["mine"], tmp_path, budget=1, seeds=1)
    assert chosen(tuning)["mine"]["mine.sharpness"] == 10.0


# ---- Halving -------------------------------------------------------------------------


def test_trials_are_judged_twice_before_their_end_where_clients_are_evaluated():
    assert rungs_of(18, 1) == [4, 9, 18]
    assert rungs_of(40, 4) == [8, 20, 40]
    # Two rungs in one evaluated round are one.
    assert rungs_of(20, 10) == [10, 20]
    assert rungs_of(20, 20) == [20]
    assert rungs_of(1, 1) == [1]


def test_a_client_that_diverges_uses_up_the_budget(tmp_path):
    runs = TrialRuns({}, (0,), (1, 2), tmp_path)
    whole = {"round": 1, "gradient_steps": 60, "replies": 4, "failures": 0}
    assert runs.steps([whole]) == 60
    assert runs.steps([{**whole, "gradient_steps": 45, "replies": 3, "failures": 1}]) == 60
    assert runs.steps([{**whole, "gradient_steps": 0, "replies": 0, "failures": 4}]) == 0


def test_halving_takes_two_thirds_of_the_steps_and_misses_little(base, tmp_path, monkeypatch):
    """Early accuracies mislead by up to a tenth, and the more the earlier they are."""

    def advance(self, number, seed, chosen, rung):
        best = 0.9 - 0.1 * abs(np.log10(chosen[STEP_SIZE] / 0.03))
        misleading = 0.1 * np.random.default_rng(number).uniform(-1, 1) * (1 - rung / 18)
        return best + misleading, 10 * rung

    monkeypatch.setattr(TrialRuns, "advance", advance)
    values = {**base, "num-server-rounds": 18}
    search = a_search(values, tmp_path, budget=8 * 180, steps_of_local=180)
    search.run()
    trials = search.study().get_trials()
    assert len(trials) >= 12
    assert 7 * 180 < studies.steps_taken(trials) <= 8 * 180
    whole = [advance(search, trial.number, 0, trial.params, 18)[0] for trial in trials]
    found = studies.best_trial(trials)
    assert found is not None
    assert max(whole) - found.value <= 0.005


def test_the_last_rung_is_judged_at_the_moment_whose_models_are_exported():
    def a_run(**client):
        means = {"validation_accuracy_mean": 0.5, "distilled_validation_accuracy_mean": 0.6}
        clients = [{"round": 2, "accuracy": 0.0, "validation_accuracy": 0.5, **client}]
        rounds = [{"round": 1, **means, "validation_accuracy_mean": 0.4}, {"round": 2, **means}]
        return SimpleNamespace(round_rows=rounds, client_rows=clients)

    assert validation_accuracy_at(a_run(distilled_validation_accuracy=0.6), 2) == 0.6
    assert validation_accuracy_at(a_run(distilled_validation_accuracy=0.4), 2) == 0.5
    assert validation_accuracy_at(a_run(), 2) == 0.5


# ---- Searches ------------------------------------------------------------------------


def test_the_steps_of_local_are_known_before_it_is_run(base, tmp_path):
    sampled = {"fraction-train": 0.5, "new-clients": 0.25, "local-epochs": 2}
    for name, changes in [("epochs", sampled), ("iterations", {"local-iterations": 7})]:
        settings = {**base, **changes, "strategy": "local", "seed": 1}
        run = engines.run(settings, output_dir=tmp_path / name)
        assert steps_of_local(settings, 1) == run.summary["gradient_steps"]


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """Four methods, with a client less than the most clusters that are tried."""
    settings = {**BASE, "num-clients": 3}
    settings |= {"kt-pfl.distillation-epochs": 4, "kt-pfl.public-batch-size": 20}
    folder = tmp_path_factory.mktemp("searched")
    methods = ["kt-pfl", "fedavg-ft", "hypcluster"]
    tuning = tune(settings, methods, folder, budget=6, seeds=1, fresh_seeds=2)
    return SimpleNamespace(
        settings=settings,
        order=[tuned.strategy for tuned in tuning.methods],
        methods={tuned.strategy: tuned for tuned in tuning.methods},
        runs={
            name: [load_run(path) for path in (folder / name).glob("trial-*")]
            for name in tuning.table.index
        },
    )


@pytest.mark.slow
def test_all_methods_get_the_same_gradient_steps_and_as_many_trials_as_they_allow(searched):
    local, kt_pfl = searched.methods["local"], searched.methods["kt-pfl"]
    for tuned in searched.methods.values():
        assert tuned.budget == 6 * local.run_steps
        assert tuned.low < tuned.accuracy < tuned.high
        assert tuned.trials > tuned.stopped + tuned.failed
    for tuned in (local, kt_pfl):
        runs = searched.runs[tuned.strategy]
        assert tuned.steps == sum(run.rounds["gradient_steps"].sum() for run in runs)
    # Nothing is left for another trial.
    assert 0 <= local.budget - local.steps < local.run_steps
    assert kt_pfl.run_steps > local.run_steps
    assert kt_pfl.trials < local.trials
    # The first trial has all rounds, and no trial begins beyond the budget.
    assert kt_pfl.steps < kt_pfl.budget + kt_pfl.run_steps
    accuracies = [searched.methods[name].accuracy for name in searched.order]
    assert accuracies == sorted(accuracies, reverse=True)


@pytest.mark.slow
def test_a_search_pays_for_the_fine_tuning_that_it_judges_by(searched):
    """Each trial is judged after rounds 1, 3 and 6, and a client is fine-tuned before each."""
    tuned = searched.methods["fedavg-ft"]
    an_epoch = steps_of_local(searched.settings, 0) // 6
    costs = []
    for run in searched.runs["fedavg-ft"]:
        rounds, epochs = len(run.round_rows), run.config["fedavg-ft.epochs"]
        judged = [1, 3, 6].index(rounds) + 1
        costs.append((rounds + epochs * judged) * an_epoch)
    assert tuned.steps == sum(costs)
    assert tuned.run_steps == (6 + tuned.settings["fedavg-ft.epochs"]) * an_epoch
    assert tuned.steps < tuned.budget + max(costs)


@pytest.mark.slow
def test_settings_that_cannot_work_are_charged_a_first_rung_and_counted(searched):
    hypcluster = searched.methods["hypcluster"]
    assert hypcluster.failed > 0
    assert hypcluster.settings["hypcluster.clusters"] <= 3
    taken = sum(run.rounds["gradient_steps"].sum() for run in searched.runs["hypcluster"])
    first_rung = steps_of_local(searched.settings, 0) // 6
    assert hypcluster.steps == taken + hypcluster.failed * first_rung


@pytest.mark.parametrize(
    "changes", [{"max-samples": 190}, {"safeguard": "blend", "record-answers": True}]
)
def test_a_search_reads_no_test_data(changes, base, tmp_path, monkeypatch):
    """No client's samples are built from those positions, with which the sweep then measures."""
    read = set()
    original = ClientData._images

    def recorded(self, part):
        read.update(self.positions[part])
        return original(self, part)

    monkeypatch.setattr(ClientData, "_images", recorded)
    tuning = tune(base | changes, ["fml"], tmp_path, budget=1, seeds=1, fresh_seeds=1)
    plan = read_config(base | changes).run.data_plan
    parts = [client_parts(plan, partition_id) for partition_id in range(plan.num_clients)]
    train, validation, test = (set(np.concatenate(part)) for part in zip(*parts, strict=True))
    assert read >= train | validation
    assert not read & test
    for configuration in read_sweep(tuning.sweep).values():
        assert configuration.run.data.evaluated_split == "test"


def test_the_sweep_runs_the_chosen_settings_with_seeds_that_tuned_nothing(base, tmp_path):
    tuning = tune(base, ["fedprox"], tmp_path, budget=1, seeds=2, fresh_seeds=3)
    runs = list(read_sweep(tuning.sweep).values())
    assert sorted({run.run.plan.seed for run in runs}) == [2, 3, 4]
    prox = next(run for run in runs if run.run.strategy == "fedprox")
    assert prox.settings.mu == chosen(tuning)["fedprox"]["fedprox.mu"]


def test_a_promising_run_continues_instead_of_being_repeated(base, tmp_path, monkeypatch):
    begun, continued = [], []
    run, resume = engines.run_configuration, engines.resume
    monkeypatch.setattr(
        engines,
        "run_configuration",
        lambda c, **k: (begun.append(Path(c.run.output_dir)), run(c, **k))[1],
    )
    monkeypatch.setattr(engines, "resume", lambda p, **k: (continued.append(p), resume(p, **k))[1])
    tune(base, [], tmp_path, budget=4, seeds=1)
    assert len(begun) == len(set(begun)) > 3
    assert continued and set(continued) <= set(begun)
    assert not [*tmp_path.glob("*/*/checkpoint")]


def test_a_preset_outside_of_the_range_is_clipped_with_a_warning(base, tmp_path, logged):
    values = read_config({**base, "strategy": "local", "learning-rate": 5.0}).flat()
    search = a_search(values, tmp_path, 1)
    (trial,) = search.study().get_trials()
    most = search_space(METHODS["local"])[STEP_SIZE].high
    assert trial.system_attrs["fixed_params"][STEP_SIZE] == most < 5
    (warning,) = [text for text in logged() if STEP_SIZE in text]
    assert f"learning-rate = 5 is outside of the range that is searched, 0.001 to {most:g}" in (
        warning
    )
    assert f"the first trial of local uses {most:g}." in warning
    search.study()
    assert len([text for text in logged() if STEP_SIZE in text]) == 1


def test_half_of_the_trials_continue_at_each_rung(base, tmp_path, monkeypatch):
    search = a_search(base, tmp_path, budget=19, steps_of_local=6)
    reached = {1: {0: 0.5, 1: 0.1, 2: 0.6, 3: 0.4}, 3: {0: 0.5, 2: 0.6}, 6: {0: 0.5, 2: 0.7}}
    monkeypatch.setattr(
        TrialRuns, "advance", lambda self, number, seed, chosen, rung: (reached[rung][number], rung)
    )
    search.run()
    trials = search.study().get_trials()
    pruned, complete = TrialState.PRUNED, TrialState.COMPLETE
    assert [trial.state for trial in trials] == [complete, pruned, complete, pruned]
    assert [trial.value for trial in trials][2] == 0.7
    assert studies.steps_taken(trials) == 6 + 1 + 6 + 1


def test_a_method_that_is_costlier_than_its_budget_has_one_trial(base, tmp_path, monkeypatch):
    search = a_search(base, tmp_path, budget=40, steps_of_local=10)
    monkeypatch.setattr(TrialRuns, "advance", lambda *_, **__: (0.5, 60))
    search.run()
    trials = search.study().trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE]
    edge = {STEP_SIZE: FloatDistribution(0.001, 0.055)}
    monkeypatch.setattr(studies, "search_space", lambda method: edge)
    assert _notes(search, trials[0]) == [
        "learning-rate = 0.05 is at the edge of the range that was searched, 0.001 to 0.055."
    ]


def test_trials_of_another_study_are_not_continued(base, tmp_path):
    tune(base, [], tmp_path, budget=1, seeds=1)
    (tmp_path / "local" / studies.FILE).unlink()
    tune({**base, "batch-size": 8}, [], tmp_path, budget=1, seeds=1)
    runs = [load_run(path) for path in (tmp_path / "local").glob("trial-*")]
    assert {run.config["batch-size"] for run in runs} == {8}


def test_a_study_with_a_larger_budget_continues_and_with_a_smaller_one_is_refused(base, tmp_path):
    once = {**base, "num-server-rounds": 1}
    (fewer,) = tune(once, [], tmp_path, budget=2, seeds=1).methods
    (more,) = tune(once, [], tmp_path, budget=3, seeds=1).methods
    assert (fewer.trials, more.trials) == (2, 3)
    with pytest.raises(ConfigError, match=r"a budget of .* gradient steps, which is more than"):
        tune(once, [], tmp_path, budget=2, seeds=1)


def test_the_interval_is_that_of_the_mean_over_clients():
    """Two clients with 4 and 100 samples measure their mean as 4 / (1/4 + 1/100) samples do."""
    one = pd.DataFrame({"round": [1, 2, 2], "validation_total": [9, 4, 100]})
    absent = pd.DataFrame({"round": [2], "validation_total": [np.nan]})
    runs = [SimpleNamespace(clients=pd.concat([one, absent]))]
    samples = 4 / (1 / 4 + 1 / 100)
    low, high = _interval(0.6, runs)
    assert (low, high) == pytest.approx(proportion_confint(0.6 * samples, samples, method="wilson"))
    twice = proportion_confint(0.6 * 2 * samples, 2 * samples, method="wilson")
    assert _interval(0.6, runs * 2) == pytest.approx(twice)
    # The pooled share is near that of the large client alone.
    assert low < 0.6 < high
    assert _interval(1.0, runs)[1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("accuracy", "low", "said"),
    [
        (0.4, 0.3, "local is best on validation data: no exchange has helped here."),
        (0.6, 0.4, "10.0 points above local. That is within its interval, so local may do as well"),
        (0.6, 0.55, "ditto is best on validation data, 10.0 points above local; the interval"),
    ],
)
def test_the_answer_says_whether_local_may_do_as_well(accuracy, low, said):
    common = {
        "settings": {}, "high": 0.9, "trials": 1, "stopped": 0, "failed": 0, "steps": 1,
        "budget": 1, "run_steps": 1, "bytes": 0, "notes": [],
    }  # fmt: skip
    methods = [
        Tuned(strategy="local", accuracy=0.5, low=0.4, **common),
        Tuned(strategy="ditto", accuracy=accuracy, low=low, **common),
    ]
    assert said in answer(sorted(methods, key=lambda method: -method.accuracy))


# ---- Refusals ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "numbers", "sentence"),
    [
        (
            {"models": "mlp,sklearn.naive_bayes:GaussianNB", "strategy": "kt-pfl"}, {},
            "GaussianNB has no gradient steps",
        ),
        ({"client-split": "60/0/40"}, {}, "has no validation data to choose settings by"),
        ({"client-split": "60/0|20/20"}, {}, "has no validation data to choose settings by"),
        *(({}, {n: 0}, "at least 1") for n in ("budget", "seeds", "jobs", "fresh_seeds")),
    ],
)  # fmt: skip
def test_a_search_that_cannot_work_is_refused(changes, numbers, sentence, base, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        tune({**base, **changes}, [], tmp_path, **numbers)


@pytest.mark.parametrize(
    ("kind", "stops", "sentence"),
    [
        (RuntimeError, ConfigError, r"None of the \d trials of local could be completed"),
        (ClientCodeError, ClientCodeError, "fails"),
    ],
)
def test_a_method_whose_trials_all_fail_is_named(
    kind, stops, sentence, base, tmp_path, monkeypatch
):
    """Own code that fails stops the search at once."""

    def fail(*arguments, **settings):
        raise kind("fails")

    monkeypatch.setattr(engines, "run_configuration", fail)
    with pytest.raises(stops, match=sentence):
        tune(base, [], tmp_path, budget=1)


def test_a_study_with_other_settings_or_seeds_is_refused(base, tmp_path):
    once = {**base, "num-server-rounds": 1}
    tune(once, [], tmp_path, budget=1, seeds=1)
    tune({**once, "torch-threads": 1}, [], tmp_path, budget=2, seeds=1)
    with pytest.raises(ConfigError, match="local holds a study with another num-server-rounds;"):
        tune({**once, "num-server-rounds": 2}, [], tmp_path, budget=1, seeds=1)
    with pytest.raises(ConfigError, match="local holds a study with another seed;"):
        tune(once, [], tmp_path, budget=1, seeds=2)


def test_a_study_of_an_older_version_has_the_defaults_of_later_settings(base, tmp_path):
    values = read_config({**base, "strategy": "local"}).flat()
    study = a_search(values, tmp_path, 1).study()
    before = study.user_attrs[studies.SETTINGS]
    study.set_user_attr(studies.SETTINGS, {k: v for k, v in before.items() if k != "batch-order"})
    assert a_search(values, tmp_path, 1).study().user_attrs[studies.SETTINGS] == before
    with pytest.raises(ConfigError, match="holds a study with another batch-order;"):
        study.set_user_attr(studies.SETTINGS, {**before, "batch-order": 1})
        a_search(values, tmp_path, 1).study()


# ---- Killed processes ----------------------------------------------------------------


def kill_this_process():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_a_new_run():
    run, begun = engines.run_configuration, []

    def killed(configuration, **settings):
        begun.append(configuration)
        if len(begun) == 3:
            RunDirectory.create(Path(configuration.run.output_dir), configuration)
            kill_this_process()
        return run(configuration, **settings)

    engines.run_configuration = killed


def kill_in_a_continued_run():
    """Kill when the second run that goes on to a later rung has done a round of it."""
    resume, continued = engines.resume, []

    def killed(path, on_round, **settings):
        continued.append(path)
        is_second = len(continued) == 2
        return resume(
            path,
            on_round=lambda row: kill_this_process() if is_second else on_round(row),
            **settings,
        )

    engines.resume = killed


@pytest.mark.slow
def test_a_study_killed_twice_ends_with_the_same_settings(base, tmp_path):
    def tuned(folder):
        return tune(base, ["kt-pfl"], tmp_path / folder, budget=2, seeds=1)

    def in_a_process_that_is_killed(arrange):
        def tune_and_die():
            arrange()
            tuned("cut")

        process = multiprocessing.get_context("fork").Process(target=tune_and_die)
        process.start()
        process.join()
        return process.exitcode

    whole = tuned("whole")
    for arrange in (kill_at_a_new_run, kill_in_a_continued_run):
        assert in_a_process_that_is_killed(arrange) == -signal.SIGKILL
    cut = tuned("cut")
    assert cut.methods == whole.methods
    assert cut.sweep.read_text() == whole.sweep.read_text()
    assert len(tomllib.loads(cut.sweep.read_text())["grid"]["combinations"]) == 2
