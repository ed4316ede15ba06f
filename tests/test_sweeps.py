"""Sweeps are read whole, resumed, and survive the failure of one run."""

import json
import logging
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest

from fedkd_flwr import engines
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.config import ConfigError
from fedkd_flwr.runs import load_run
from fedkd_flwr.runs.lock import lock_directory
from fedkd_flwr.sweeps import read_sweep, run_name, run_sweep
from strategies.kt_pfl import KTpFL

ROOT = Path(__file__).parent.parent
SWEEPS = sorted((ROOT / "conf" / "sweeps").glob("*.toml"))

TINY = """
[base]
dataset = "digits"
max-samples = 300
held-out-size = 40
public-size = 20
models = "mlp"
num-clients = 3
num-server-rounds = 1
local-epochs = 1
device = "cpu"
torch-threads = 1
"""


@pytest.fixture
def sweep(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY + '[grid]\nstrategy = ["local", "kt-pfl"]\nseed = [0, 1]\n')
    return path


@pytest.fixture
def told():
    return []


def states(told):
    begun = ("started", "continued")
    return [(progress.number, progress.state) for progress in told if progress.state not in begun]


def write(tmp_path, text):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return path


def test_what_no_run_reads_is_said_once(tmp_path, logged):
    base = TINY + "kt-pfl.rho = 0.7\nfd.gamma = 0.2\ndata-root = '.'\n[grid]\nseed = [0, 1]\n"
    both = write(tmp_path, base + 'strategy = ["local", "kt-pfl"]\n')
    read_sweep(both)
    said = "No run of the sweep {} reads fd.gamma, data-root: set in vain."
    assert logged() == [said.format(both)]
    alone = write(tmp_path, base + 'strategy = ["local"]\n')
    runs = run_sweep(alone, tmp_path / "runs")
    said = "No run of the sweep {} reads kt-pfl.rho, fd.gamma, data-root: set in vain."
    assert logged()[1:] == [said.format(alone)]
    # Read again, they are the runs that the file asks for.
    assert [run.path.name for run in runs] == list(read_sweep(alone))


def test_a_grid_is_every_combination_with_the_last_setting_fastest(sweep):
    configurations = list(read_sweep(sweep).values())
    found = [(c.run.strategy, c.run.plan.seed) for c in configurations]
    assert found == [("local", 0), ("local", 1), ("kt-pfl", 0), ("kt-pfl", 1)]
    assert all(c.run.plan.num_clients == 3 for c in configurations)


def test_combinations_go_together(tmp_path):
    path = write(
        tmp_path,
        "[grid]\nseed = [0, 1]\n[[grid.combinations]]\nstrategy = 'kt-pfl'\nkt-pfl.rho = 0.9\n"
        "models = 'lenet,mlp'\n[[grid.combinations]]\nstrategy = 'fedavg'\nmodels = 'lenet'\n",
    )
    found = [
        (c.run.plan.seed, c.run.strategy, c.run.models.models) for c in read_sweep(path).values()
    ]
    assert found == [
        (0, "kt-pfl", ("lenet", "mlp")), (0, "fedavg", ("lenet",)),
        (1, "kt-pfl", ("lenet", "mlp")), (1, "fedavg", ("lenet",)),
    ]  # fmt: skip
    assert [c.settings.rho for c in read_sweep(path).values() if c.run.strategy == "kt-pfl"] == [
        0.9, 0.9,
    ]  # fmt: skip


def test_a_preset_is_found_beside_the_sweep_and_overridden(tmp_path):
    (tmp_path / "preset.toml").write_text("seed = 5\nalpha = 0.3\n[kt-pfl]\nrho = 0.7\n")
    path = write(tmp_path, "[base]\npreset = 'preset.toml'\nalpha = 0.4\n[grid]\nseed = [8]\n")
    (configuration,) = read_sweep(path).values()
    run = configuration.run
    assert (run.plan.seed, run.data.alpha, configuration.settings.rho) == (8, 0.4, 0.7)


def test_settings_of_other_methods_do_not_repeat_a_run(tmp_path):
    text = "[grid]\nstrategy = ['kt-pfl', 'local']\n[grid.kt-pfl]\nrho = [0.1, 0.5, 0.9]\n"
    strategies = [c.run.strategy for c in read_sweep(write(tmp_path, text)).values()]
    assert strategies == ["kt-pfl"] * 3 + ["local"]


def test_settings_from_outside_hold_for_every_run(sweep):
    configurations = read_sweep(sweep, {"seed": 7, "num-clients": 4}).values()
    assert [(c.run.strategy, c.run.plan.seed, c.run.plan.num_clients) for c in configurations] == [
        ("local", 7, 4), ("kt-pfl", 7, 4),
    ]  # fmt: skip


def test_a_part_of_a_sweep_is_those_runs_that_have_the_values_wanted(sweep):
    def chosen(**only):
        configurations = read_sweep(sweep, only=only).values()
        return [(c.run.strategy, c.run.plan.seed) for c in configurations]

    assert chosen(strategy="kt-pfl") == [("kt-pfl", 0), ("kt-pfl", 1)]
    assert chosen(strategy=["kt-pfl", "local"], seed=[1]) == [("local", 1), ("kt-pfl", 1)]
    # Runs keep the names that they have in the whole, so that they are found again.
    assert read_sweep(sweep, only={"seed": [1]}).keys() < read_sweep(sweep).keys()


def test_a_part_is_chosen_by_what_runs_have_from_elsewhere_too(tmp_path):
    text = "[grid]\ncombinations = [{strategy = 'local'}, {strategy = 'local', alpha = 0.1}]\n"
    path = write(tmp_path, "[base]\npartition = 'dirichlet'\n" + text)
    (default,) = read_sweep(path, only={"alpha": [0.5]}).values()
    assert default.flat()["alpha"] == 0.5


@pytest.mark.parametrize(
    ("only", "sentence"),
    [
        ({"seed": [2, 3]}, r"has no run with seed = 2 or 3; its runs have seed = 0 or 1\."),
        ({"sead": [1]}, "have no setting sead"),
    ],
)
def test_a_part_without_runs_is_refused(sweep, only, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_sweep(sweep, only=only)


def test_a_part_of_a_sweep_is_run_alone(sweep, tmp_path, told):
    run_sweep(sweep, tmp_path / "runs", on_run=told.append, only={"strategy": ["local"]})
    assert states(told) == [(1, "finished"), (2, "finished")]
    told.clear()
    run_sweep(sweep, tmp_path / "runs", on_run=told.append)
    assert [state for _, state in states(told)] == ["skipped", "skipped", "finished", "finished"]


def test_what_holds_in_place_of_the_grid_is_said(sweep, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    read_sweep(sweep, {"num-clients": 4})
    assert caplog.messages == []
    read_sweep(sweep, {"seed": 7})
    (sentence,) = caplog.messages
    assert sentence.startswith("seed = 7 holds for every run, in place of what the sweep")


def test_runs_that_differ_in_their_place_alone_are_refused(tmp_path):
    text = "[grid]\nseed = [0]\ntorch-threads = [1, 2]\ndevice = ['cpu', 'auto']\n"
    with pytest.raises(ConfigError, match="varies device, by which runs do not differ"):
        read_sweep(write(tmp_path, text))
    # Each method where it is fastest: no two runs become one.
    text = "[grid]\ncombinations = [{strategy = 'local', torch-threads = 1}, {torch-threads = 2}]\n"
    assert [c.run.torch_threads for c in read_sweep(write(tmp_path, text)).values()] == [1, 2]


def test_names_depend_on_what_defines_a_run_alone(sweep):
    names = list(read_sweep(sweep))
    assert names == list(read_sweep(sweep, {"device": "auto", "data-root": "/x"}))
    assert not set(names) & set(read_sweep(sweep, {"learning-rate": 0.3}))
    # A name outlives the process: this one was written down.
    assert run_name(next(iter(read_sweep(sweep).values()))) == "local-seed0-9c0bf291"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[base]\nseed = 1\n", r"needs a table \[grid\]"),
        ("base = 3\n[grid]\nseed = [1]\n", r"needs a table \[grid\]"),
        ("grid = 3\n", r"needs a table \[grid\]"),
        ("[grid]\nseed = [1]\n[other]\n", "nothing else"),
        ("[grid]\nseed = 1\n", "needs a list of values for seed"),
        ("[grid]\nseed = []\n", "needs a list of values for seed"),
        ("[grid]\ncombinations = [1]\n", "have to be tables"),
        ("[grid]\nseed = [1]\ncombinations = [{seed = 2}]\n", "varies seed in two places"),
        ("[grid]\nnope = [1]\n", "nope = 1: The run config has no key nope"),
        ("[grid]\nstrategy = ['fedavg']\n", "strategy = fedavg: fedavg averages parameters"),
        ("[base]\npreset = 'none.toml'\n[grid]\nseed = [1]\n", "There is no preset"),
        ("[grid\n", "no valid TOML"),
    ],
)
def test_a_faulty_sweep_is_refused_before_any_run(tmp_path, text, sentence):
    with pytest.raises(ConfigError, match=sentence) as refusal:
        run_sweep(write(tmp_path, text), tmp_path / "runs")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "runs").exists()


def test_a_missing_sweep_and_an_unknown_engine_are_refused(tmp_path, sweep):
    with pytest.raises(ConfigError, match=r"There is no sweep"):
        read_sweep(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="allowed in-process, simulation"):
        run_sweep(sweep, tmp_path / "runs", engine="nope")


def test_the_folder_is_there_before_runs_begin_at_once(sweep, tmp_path):
    """Else one that began would remove it, as it found it missing, while another begins."""
    folder = tmp_path / "runs"
    there = {}
    run_sweep(sweep, folder, on_run=lambda told: there.setdefault(told.state, folder.exists()))
    assert there["started"]


def test_a_sweep_runs_once_and_only_what_is_missing_again(sweep, tmp_path, told):
    folder = tmp_path / "runs"
    first = run_sweep(sweep, folder, on_run=told.append)
    assert states(told) == [(n, "finished") for n in (1, 2, 3, 4)]
    assert [progress.state for progress in told][::2] == ["started"] * 4
    assert [run.path.name for run in first] == list(read_sweep(sweep))
    assert len(compare(folder).table) == 2

    told.clear()
    second = run_sweep(sweep, folder, on_run=told.append)
    assert states(told) == [(n, "skipped") for n in (1, 2, 3, 4)]
    assert [run.path for run in second] == [run.path for run in first]

    told.clear()
    before = first[2].rounds["loss_mean"].tolist()
    (first[2].path / "summary.json").unlink()
    third = run_sweep(sweep, folder, on_run=told.append)
    assert states(told) == [(1, "skipped"), (2, "skipped"), (3, "finished"), (4, "skipped")]
    assert third[2].finished
    assert third[2].rounds["loss_mean"].tolist() == before
    (aside,) = (folder / "aside").iterdir()
    assert aside.name == f"{first[2].path.name}-1"
    assert (aside / "rounds.jsonl").exists()
    assert compare(folder).notes == []


SAME = ["round", "accuracy_mean", "loss_mean", "numbers_up", "bytes_down"]


def stop_second_run(sweep, folder, settings):
    """Interrupt a sweep of runs with several rounds once its second run has done two."""
    second = list(read_sweep(sweep, settings))[1]

    def interrupt(name, row):
        if name == second and row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, folder, settings=settings, on_round=interrupt)
    return folder / second


FOUR_ROUNDS = {"strategy": "kt-pfl", "num-server-rounds": 4, "momentum": 0.9}


def test_a_stopped_run_goes_on_and_ends_as_one_that_never_was(sweep, tmp_path, told):
    sweep.write_text(TINY + "[grid]\nseed = [0, 1]\n")
    whole = run_sweep(sweep, tmp_path / "whole", settings=FOUR_ROUNDS)
    folder, rows = tmp_path / "runs", []
    stopped = stop_second_run(sweep, folder, FOUR_ROUNDS)
    assert (stopped / "checkpoint").exists()

    runs = run_sweep(
        sweep, folder, on_run=told.append, settings=FOUR_ROUNDS, save_models=True,
        on_round=lambda name, row: rows.append((name, row["round"])),
    )  # fmt: skip
    assert [progress.state for progress in told] == ["skipped", "continued", "finished"]
    assert told[1].completed == 2
    assert rows == [(stopped.name, 3), (stopped.name, 4)]
    for run, uninterrupted in zip(runs, whole, strict=True):
        assert run.rounds[SAME].to_dict() == uninterrupted.rounds[SAME].to_dict()
    assert not (stopped / "checkpoint").exists() and not (folder / "aside").exists()
    # Where models go is no setting that a run's numbers depend on.
    assert len(list((stopped / "models").glob("*.json"))) == 3


def test_a_stopped_run_from_before_a_default_changed_is_done_anew(sweep, tmp_path, told):
    sweep.write_text(TINY + "[grid]\nseed = [0, 1]\n")
    folder = tmp_path / "runs"
    stopped = stop_second_run(sweep, folder, FOUR_ROUNDS)
    description = json.loads((stopped / "config.json").read_text())
    description["config"]["learning-rate"] = 0.5
    (stopped / "config.json").write_text(json.dumps(description))
    runs = run_sweep(sweep, folder, on_run=told.append, settings=FOUR_ROUNDS)
    assert [progress.state for progress in told] == ["skipped", "started", "finished"]
    assert {run.config["learning-rate"] for run in runs} != {0.5}
    assert len(list((folder / "aside").iterdir())) == 1


@pytest.mark.parametrize("lost", ["server.safetensors", "clients"])
def test_a_stopped_run_that_lost_what_it_would_go_on_from_is_done_anew(lost, sweep, tmp_path, told):
    sweep.write_text(TINY + "[grid]\nseed = [0, 1]\n")
    folder = tmp_path / "runs"
    stopped = stop_second_run(sweep, folder, FOUR_ROUNDS)
    (stopped / "checkpoint" / lost).rename(tmp_path / "lost")
    runs = run_sweep(sweep, folder, on_run=told.append, settings=FOUR_ROUNDS)
    assert [progress.state for progress in told] == ["skipped", "started", "finished"]
    assert list(runs[1].rounds["round"]) == [1, 2, 3, 4]
    assert (folder / "aside" / f"{stopped.name}-1" / "rounds.jsonl").exists()


def test_a_run_that_failed_goes_on_once_the_cause_is_gone(sweep, tmp_path, told, monkeypatch):
    sweep.write_text(TINY + "[grid]\nseed = [0, 1]\n")
    real = KTpFL.teach

    def failing(self, server_round, replies):
        if server_round == 3:
            raise RuntimeError("the disk is on fire")
        return real(self, server_round, replies)

    monkeypatch.setattr(KTpFL, "teach", failing)
    assert run_sweep(sweep, tmp_path / "runs", settings=FOUR_ROUNDS) == []
    monkeypatch.undo()
    runs = run_sweep(sweep, tmp_path / "runs", on_run=told.append, settings=FOUR_ROUNDS)
    assert [progress.state for progress in told] == ["continued", "finished"] * 2
    assert [list(run.rounds["round"]) for run in runs] == [[1, 2, 3, 4]] * 2


@pytest.mark.parametrize("save_models", [True, False])
def test_every_run_exports_models_into_a_folder_of_its_own(save_models, sweep, tmp_path):
    settings = {"strategy": "local", "models-dir": str(tmp_path / "models")}
    runs = run_sweep(sweep, tmp_path / "runs", settings=settings, save_models=save_models)
    assert len(runs) == 2
    for run in runs:
        folder = run.path / "models" if save_models else tmp_path / "models" / run.path.name
        cards = [json.loads((folder / f"{n}.json").read_text()) for n in range(3)]
        assert {card["seed"] for card in cards} == {run.config["seed"]}
    assert (tmp_path / "models").exists() is not save_models


def test_the_runs_of_a_sweep_keep_no_checkpoint(sweep, tmp_path):
    (run, *_) = run_sweep(sweep, tmp_path / "runs", settings={"strategy": "local"})
    assert not (run.path / "checkpoint").exists()


def test_a_damaged_run_is_done_anew(sweep, tmp_path, told):
    (run, *_) = run_sweep(sweep, tmp_path / "runs", settings={"strategy": "local"})
    (run.path / "summary.json").write_text("{")
    run_sweep(sweep, tmp_path / "runs", on_run=told.append, settings={"strategy": "local"})
    assert states(told) == [(1, "finished"), (2, "skipped")]


def test_a_run_that_another_process_is_writing_is_left_to_it(sweep, tmp_path, told):
    folder, settings = tmp_path / "runs", {"strategy": "local"}
    (run, *_) = run_sweep(sweep, folder, settings=settings)
    (run.path / "summary.json").unlink()
    with closing(lock_directory(run.path)):
        others = run_sweep(sweep, folder, on_run=told.append, settings=settings)
    assert states(told) == [(1, "failed"), (2, "skipped")]
    assert "is being written by process" in told[0].error
    assert len(others) == 1
    assert (run.path / "rounds.jsonl").exists() and not (folder / "aside").exists()
    run_sweep(sweep, folder, settings=settings)
    assert load_run(run.path).finished


def test_a_run_from_before_a_default_changed_is_done_anew(sweep, tmp_path, told):
    (run, *_) = run_sweep(sweep, tmp_path / "runs", settings={"strategy": "local"})
    description = json.loads((run.path / "config.json").read_text())
    description["config"]["learning-rate"] = 0.5
    (run.path / "config.json").write_text(json.dumps(description))
    run_sweep(sweep, tmp_path / "runs", on_run=told.append, settings={"strategy": "local"})
    assert states(told) == [(1, "finished"), (2, "skipped")]
    assert len(list((tmp_path / "runs" / "aside").iterdir())) == 1


def test_a_failure_is_recorded_and_does_not_stop_the_rest(sweep, tmp_path, told, monkeypatch):
    real_run = engines.run

    def failing(preset, **options):
        if (preset["strategy"], preset["seed"]) == ("local", 1):
            raise RuntimeError("the disk is on fire")
        return real_run(preset, **options)

    monkeypatch.setattr(engines, "run", failing)
    runs = run_sweep(sweep, tmp_path / "runs", on_run=told.append)
    assert states(told) == [(1, "finished"), (2, "failed"), (3, "finished"), (4, "finished")]
    assert [p.error for p in told if p.state == "failed"] == ["the disk is on fire"]
    assert len(runs) == 3
    (line,) = (tmp_path / "runs" / "failures.jsonl").read_text().splitlines()
    failure = json.loads(line)
    assert failure["run"] == list(read_sweep(sweep))[1]
    assert failure["error"] == "RuntimeError: the disk is on fire"

    monkeypatch.undo()
    told.clear()
    assert len(run_sweep(sweep, tmp_path / "runs", on_run=told.append)) == 4
    assert (2, "finished") in states(told)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_sweep_of_the_project_is_valid_and_has_a_reference(path):
    configurations = read_sweep(path).values()
    seeds_of = defaultdict(set)
    for configuration in configurations:
        seeds_of[configuration.run.strategy].add(configuration.run.plan.seed)
    assert "local" in seeds_of
    assert len(seeds_of) >= 2
    assert len(seeds_of["local"]) >= 2
    assert all(seeds == seeds_of["local"] for seeds in seeds_of.values())
