"""Tuning: the space, equal budgets, and a study that continues where it was stopped."""

import contextlib
import shutil
import subprocess
import sys

import pytest
import tomli_w
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial

from fedkd_flwr import engines
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.methods import METHODS
from fedkd_flwr.runs import RunDirectoryError
from fedkd_flwr.sweeps import read_sweep
from fedkd_flwr.tuning import study as studies
from fedkd_flwr.tuning import tune
from fedkd_flwr.tuning.space import STEP_SIZE, Dimension, search_space


@pytest.fixture
def base(small):
    changes = {
        "models": "mlp",
        "max-samples": 300,
        "num-server-rounds": 9,
        "batch-size": 32,
        "evaluate-every": 1,
    }
    return {**small, **changes}


def chosen(tuning):
    return {tuned.strategy: tuned.settings for tuned in tuning.methods}


# ---- The space -----------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_tuned_over_the_step_size_and_settings_it_reads(name):
    space = search_space(METHODS[name])
    keys = METHODS[name].strategy.settings_type.flat_keys()
    assert STEP_SIZE in space
    assert set(space) - {STEP_SIZE} <= set(keys)
    assert all(dimension.low < dimension.high for dimension in space.values())


def test_a_space_without_the_step_size_is_refused(monkeypatch):
    monkeypatch.setattr("fedkd_flwr.tuning.space.STEP_SIZE", "pace")
    with pytest.raises(ConfigError, match=r"The search space has no pace\. Declare it"):
        search_space(METHODS["local"])


def test_the_edge_of_a_logarithmic_range_is_a_tenth_of_its_orders_of_magnitude():
    rate = Dimension(0.001, 1.0, log=True, whole=False)
    assert rate.edge(0.0019) == "low"
    assert rate.edge(0.0021) == ""
    assert rate.edge(0.49) == ""
    assert rate.edge(0.51) == "high"


def test_a_range_is_widened_by_half_on_one_side():
    rate = Dimension(0.01, 1.0, log=True, whole=False).widened("high")
    assert (rate.low, rate.high) == (0.01, pytest.approx(10.0))
    clusters = Dimension(2, 6, log=False, whole=True).widened("high")
    assert (clusters.low, clusters.high) == (2, 8)


def test_a_range_is_not_widened_beyond_the_limits_of_its_setting():
    weight = search_space(METHODS["fml"])["fml.alpha"]
    wider = weight.widened("high").widened("low")
    assert (wider.low, wider.high) == (0.0, 1.0)
    assert wider.edge(1.0) == wider.edge(0.0) == ""


# ---- Searches ------------------------------------------------------------------------


def test_all_methods_get_the_same_trials_and_one_is_run_to_its_end(base, tmp_path):
    tuning = tune(base, ["fedprox"], tmp_path, budget=4, seeds=1, fresh_seeds=2)
    assert {tuned.strategy for tuned in tuning.methods} == {"local", "fedprox"}
    for tuned in tuning.methods:
        assert tuned.trials == 4
        assert tuned.low < tuned.accuracy < tuned.high
        assert 9 <= tuned.rounds < 4 * 9
    accuracies = [tuned.accuracy for tuned in tuning.methods]
    assert accuracies == sorted(accuracies, reverse=True)


def test_the_sweep_runs_the_chosen_settings_with_seeds_that_tuned_nothing(base, tmp_path):
    tuning = tune(base, ["fedprox"], tmp_path, budget=2, seeds=2, fresh_seeds=3)
    runs = list(read_sweep(tuning.sweep).values())
    assert sorted({run.run.plan.seed for run in runs}) == [2, 3, 4]
    prox = next(run for run in runs if run.run.strategy == "fedprox")
    assert prox.settings.mu == chosen(tuning)["fedprox"]["fedprox.mu"]


def test_a_killed_study_continues_to_the_settings_of_an_uninterrupted_one(
    base, tmp_path, monkeypatch
):
    whole = tune(base, ["fedprox"], tmp_path / "whole", budget=4, seeds=2)
    calls = []

    def killed(path, **settings):
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return resume(path, **settings)

    resume = engines.resume
    monkeypatch.setattr(studies.engines, "resume", killed)
    with pytest.raises(KeyboardInterrupt):
        tune(base, ["fedprox"], tmp_path / "cut", budget=4, seeds=2)
    assert len(calls) == 2
    continued = tune(base, ["fedprox"], tmp_path / "cut", budget=4, seeds=2)
    assert chosen(continued) == chosen(whole)
    assert [t.accuracy for t in continued.methods] == [t.accuracy for t in whole.methods]


def test_a_promising_run_continues_instead_of_being_repeated(base, tmp_path, monkeypatch):
    begun, continued = [], []
    run, resume = engines.run, engines.resume
    monkeypatch.setattr(
        studies.engines, "run", lambda *a, **k: (begun.append(k["output_dir"]), run(*a, **k))[1]
    )
    monkeypatch.setattr(
        studies.engines, "resume", lambda p, **k: (continued.append(p), resume(p, **k))[1]
    )
    tune(base, [], tmp_path, budget=3, seeds=1)
    assert len(begun) == len(set(begun)) == 3
    assert continued and set(continued) <= set(begun)


def test_settings_that_cannot_work_use_up_a_trial_and_are_counted(base, tmp_path):
    few = {**base, "num-clients": 3}
    tuning = tune(few, ["hypcluster"], tmp_path, budget=6, seeds=1)
    hypcluster = next(tuned for tuned in tuning.methods if tuned.strategy == "hypcluster")
    assert hypcluster.trials == 6
    assert hypcluster.failed > 0
    assert hypcluster.settings["hypcluster.clusters"] <= 3


def test_a_range_is_widened_late_where_the_best_value_lies_at_its_edge(base, tmp_path):
    search = studies.MethodSearch("local", {**base, "learning-rate": 0.01}, (0,), 6, tmp_path)
    study = search.study()
    distribution = FloatDistribution(0.001, 0.3, log=True)

    def add(rate, value):
        study.add_trial(
            create_trial(
                params={STEP_SIZE: rate}, distributions={STEP_SIZE: distribution}, value=value,
                state=TrialState.COMPLETE,
            )
        )  # fmt: skip

    for rate, value in [(0.01, 0.5), (0.05, 0.6), (0.29, 0.9)]:
        add(rate, value)
    assert search.widened(study) == {}
    add(0.1, 0.7)
    assert search.widened(study)[STEP_SIZE].high > 1
    assert search.widened(study)[STEP_SIZE].low == 0.001


def test_a_trial_can_be_stopped_at_every_rung_but_the_last(base, tmp_path, monkeypatch):
    # A ninth and a third of five rounds are rounded to 1 and 2.
    search = studies.MethodSearch("local", {**base, "num-server-rounds": 5}, (0,), 2, tmp_path)
    values = {(0, 1): 0.5, (0, 2): 0.6, (0, 5): 0.7, (1, 1): 0.9, (1, 2): 0.1}
    monkeypatch.setattr(
        studies.MethodSearch,
        "_advance",
        lambda self, number, seed, chosen, rung: values[number, rung],
    )
    search.run()
    states = [trial.state for trial in search.study().get_trials()]
    assert states == [TrialState.COMPLETE, TrialState.PRUNED]


def test_trials_beyond_a_smaller_budget_do_not_count(base, tmp_path):
    once = {**base, "num-server-rounds": 1}
    tune(once, [], tmp_path, budget=3, seeds=1)
    (tuned,) = tune(once, [], tmp_path, budget=2, seeds=1).methods
    assert tuned.trials == tuned.rounds == 2


# ---- Refusals ------------------------------------------------------------------------


def test_clients_without_validation_data_are_refused(base, tmp_path):
    with pytest.raises(ConfigError, match="has no validation data to choose settings by"):
        tune({**base, "client-split": "60/0/40"}, [], tmp_path)


@pytest.mark.parametrize("name", ["budget", "seeds", "jobs", "fresh_seeds"])
def test_numbers_below_one_are_refused(base, tmp_path, name):
    with pytest.raises(ConfigError, match="should be at least 1"):
        tune(base, [], tmp_path, **{name: 0})


def test_a_method_whose_trials_all_fail_is_named(base, tmp_path, monkeypatch):
    def fail(*arguments, **settings):
        raise RuntimeError("diverged")

    monkeypatch.setattr(studies.engines, "run", fail)
    with pytest.raises(ConfigError, match="None of the 2 trials of local could be completed"):
        tune(base, [], tmp_path, budget=2)


def test_a_study_with_other_settings_or_seeds_is_refused(base, tmp_path):
    once = {**base, "num-server-rounds": 1}
    tune(once, [], tmp_path, budget=1, seeds=1)
    tune({**once, "torch-threads": 1}, [], tmp_path, budget=2, seeds=1)
    with pytest.raises(ConfigError, match="local holds a study with another num-server-rounds;"):
        tune({**once, "num-server-rounds": 2}, [], tmp_path, budget=1, seeds=1)
    with pytest.raises(ConfigError, match="local holds a study with another seed;"):
        tune(once, [], tmp_path, budget=1, seeds=2)


def test_a_best_trial_whose_runs_were_deleted_is_named(base, tmp_path):
    once = {**base, "num-server-rounds": 1}
    tune(once, [], tmp_path, budget=1, seeds=1)
    shutil.rmtree(tmp_path / "local" / "trial-000-seed0")
    with pytest.raises(RunDirectoryError, match="best trial of local, number 0, were deleted"):
        tune(once, [], tmp_path, budget=1, seeds=1)


def test_a_damaged_study_is_named(base, tmp_path):
    file = tmp_path / "local" / studies.FILE
    file.parent.mkdir()
    file.write_bytes(b"damaged" * 100)
    with pytest.raises(
        RunDirectoryError, match=r"study\.db cannot be read: file is not a database"
    ):
        tune(base, [], tmp_path)


# ---- Slow proofs ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["local", "kt-pfl"])
def test_halving_takes_half_of_the_rounds_and_finds_a_setting_as_good(base, tmp_path, strategy):
    """All trials are run to their end afterwards, which shows what halving missed.

    What it finds may be 1.5 points below the best of all trials: early rounds rank them roughly.
    """
    size = {"max-samples": 900, "client-split": "30/40/30", "num-server-rounds": 18}
    values = {**base, **size, "strategy": strategy}
    values = read_config(values).without_unread().flat()
    search = studies.MethodSearch(strategy, values, (0, 1), 12, tmp_path)
    search.run()
    ended = search.study().get_trials(deepcopy=False)
    rounds = sum(len(run.round_rows) for trial in ended for run in search.runs(trial))
    assert rounds <= 0.5 * 12 * 2 * 18
    complete = {}
    for trial in ended:
        chosen = search.settings(trial)
        reached = [search._advance(trial.number, seed, chosen, 18) for seed in search.seeds]
        complete[trial.number] = sum(reached) / len(reached)
    found = studies.best_trial(ended)
    assert found is not None
    assert complete[found.number] >= max(complete.values()) - 0.015


@pytest.mark.slow
def test_five_methods_killed_and_continued_end_with_the_same_settings(base, tmp_path):
    preset = tmp_path / "digits.toml"
    wanted = {key: value for key, value in base.items() if "." not in key}
    preset.write_text(tomli_w.dumps(wanted))
    methods = "kt-pfl,perfed-ckt,fedavg,ditto"

    def command(folder):
        options = ["--methods", methods, "--budget", "4", "--output-dir", str(tmp_path / folder)]
        return [sys.executable, "-m", "fedkd_flwr.cli", "tune", str(preset), *options]

    subprocess.run(command("whole"), check=True, capture_output=True)
    for seconds in (12, 20):
        process = subprocess.Popen(command("cut"), stdout=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()
        process.wait()
    subprocess.run(command("cut"), check=True, capture_output=True)
    whole, cut = (tmp_path / folder / "chosen.toml" for folder in ("whole", "cut"))
    assert cut.read_text() == whole.read_text()
