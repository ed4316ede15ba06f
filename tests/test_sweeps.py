"""Sweeps: read whole, continued in a folder that has runs, not stopped by a failed run."""

import json
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from helpers import change_json, write_image_folder

from fedkd_flwr import engines
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.config import ConfigError
from fedkd_flwr.runs import RunDirectoryError, load_run
from fedkd_flwr.runs.folders import lock_directory
from fedkd_flwr.sweeps import read_sweep, run_name, run_sweep
from fedkd_flwr.sweeps.folder import missing_extras
from fedkd_flwr.sweeps.grid import select_runs

ROOT = Path(__file__).parent.parent
SWEEPS = sorted((ROOT / "conf" / "sweeps").glob("*.toml"))
PUBLISHED = sorted((ROOT / "results" / "sweeps").glob("*.toml"))

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
    return [(progress.number, progress.state) for progress in told if progress.state != "started"]


def write(tmp_path, text):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return path


def with_grid(tmp_path, grid):
    return write(tmp_path, f"{TINY}[grid]\n{grid}")


def test_settings_that_no_run_reads_are_logged_once(tmp_path, logged):
    base = TINY + "kt-pfl.rho = 0.7\nfd.gamma = 0.2\ndata-root = '.'\n[grid]\nseed = [0, 1]\n"
    both = write(tmp_path, base + 'strategy = ["local", "kt-pfl"]\n')
    read_sweep(both)
    said = "No run of the sweep {} reads fd.gamma, data-root: ignored."
    assert logged() == [said.format(both)]
    alone = write(tmp_path, base + 'strategy = ["local"]\n')
    runs = run_sweep(alone, tmp_path / "runs")
    said = "No run of the sweep {} reads fd.gamma, kt-pfl.rho, data-root: ignored."
    assert logged()[1:] == [said.format(alone)]
    # Read again, they are the runs that the file asks for.
    assert [run.path.name for run in runs] == list(read_sweep(alone))


def test_a_setting_of_another_split_is_logged_unless_it_is_of_our_preset(tmp_path, logged):
    preset = 'preset = "compare/digits-same"\n'  # it has alpha for other splits
    read_sweep(write(tmp_path, f"[base]\n{preset}[grid]\nseed = [0]\n"))
    assert logged() == []
    read_sweep(write(tmp_path, f"[base]\n{preset}[grid]\nalpha = [0.2, 0.3]\n"))
    assert [line.partition(" reads ")[2] for line in logged()] == ["alpha: ignored."]


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


def test_only_selects_runs_by_values(sweep):
    def chosen(**only):
        configurations = select_runs(sweep, read_sweep(sweep), only).values()
        return [(c.run.strategy, c.run.plan.seed) for c in configurations]

    assert chosen(strategy="kt-pfl") == [("kt-pfl", 0), ("kt-pfl", 1)]
    for both in (["kt-pfl", "local"], "kt-pfl,local"):
        assert chosen(strategy=both, seed=[1]) == [("local", 1), ("kt-pfl", 1)]
    assert len(chosen(seed=["0,1"])) == 4
    # Runs keep the names that they have in the whole, so that they are found again.
    assert select_runs(sweep, read_sweep(sweep), {"seed": [1]}).keys() < read_sweep(sweep).keys()


def test_only_takes_values_as_the_sweep_has_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        write_image_folder(tmp_path / name, np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1])
    text = TINY.replace('dataset = "digits"', "").replace('models = "mlp"', "")
    text += "[grid]\ndataset = ['folder:a', 'folder:b']\nmodels = ['mlp, cnn', 'lenet']\n"
    path = write(tmp_path, text + "strategy = ['local']\n")
    read = read_sweep(path)
    (run,) = select_runs(path, read, {"dataset": "folder:a", "models": ["mlp, cnn"]}).values()
    assert run.run.data.dataset == f"folder:{tmp_path / 'a'}"
    assert run.run.models.models == ("mlp", "cnn")
    assert select_runs(path, read, {"dataset": run.run.data.dataset, "models": "mlp,cnn"})
    with pytest.raises(ConfigError, match="has no run with dataset = folder:c"):
        select_runs(path, read, {"dataset": "folder:c"})


@pytest.mark.parametrize(
    ("only", "sentence"),
    [
        ({"seed": [2, 3]}, r"has no run with seed = 2 or 3; its runs have seed = 0 or 1\."),
        ({"seed": [0, 7]}, r"has no run with seed = 7; its runs have seed = 0 or 1\."),
        ({"seed": 0, "strategy": "local,kt-pfI"}, r"has no run with strategy = kt-pfI; its runs"),
        ({"sead": [1]}, "have no setting sead"),
    ],
)
def test_a_part_without_runs_is_refused(sweep, only, sentence):
    with pytest.raises(ConfigError, match=sentence):
        select_runs(sweep, read_sweep(sweep), only)


def test_runs_that_differ_in_their_place_alone_are_refused(tmp_path):
    text = "[grid]\nseed = [0]\ntorch-threads = [1, 2]\ndevice = ['cpu', 'auto']\n"
    with pytest.raises(ConfigError, match="varies device, which does not distinguish runs"):
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
        ("[grid]\nseed = [0, 1, 1]\n", "lists seed = 1 twice, which is one run: remove it"),
        ("[grid]\ncombinations = [{seed = 1}, {seed = 1}]\n", "lists combinations = .* twice"),
        ('[base]\n"fd.gamma" = 1\nfd.gamma = 2\n[grid]\nseed = [0]\n', "fd.gamma is set twice"),
        ("[grid]\nnope = [1]\n", "nope = 1: The run config has no key nope"),
        ("[grid]\nstrategy = ['fedavg']\n", "strategy = fedavg: fedavg averages parameters"),
        ("[base]\npreset = 'none.toml'\n[grid]\nseed = [1]\n", "There is no preset"),
        ("[grid\n", "not valid TOML"),
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
    with pytest.raises(ConfigError, match="not one of in-process, simulation"):
        run_sweep(sweep, tmp_path / "runs", engine="nope")


def test_the_folder_exists_before_parallel_runs_start(sweep, tmp_path):
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
    assert not any("left out" in note for note in compare(folder).notes)


def test_earlier_runs_in_aside_are_kept(sweep, tmp_path, told):
    settings, folder = {"strategy": "local"}, tmp_path / "runs"
    (run, *_) = run_sweep(sweep, folder, settings=settings)
    second = folder / "aside" / f"{run.path.name}-2"
    second.mkdir(parents=True)
    (second / "mine.txt").write_text("mine")
    for _ in range(2):
        (run.path / "summary.json").write_text("{")
        run_sweep(sweep, folder, settings=settings)
    names = sorted(path.name[-2:] for path in second.parent.iterdir())
    assert names == ["-1", "-2", "-3"]
    assert [path.name for path in second.iterdir()] == ["mine.txt"]


def test_a_finished_run_reports_missing_extras(sweep, tmp_path, told):
    settings, folder = {"strategy": "local"}, tmp_path / "runs"
    (run, *_) = run_sweep(sweep, folder, settings=settings)
    assert missing_extras(run, run.config) == []
    assert missing_extras(run, {**run.config, "keep-best": True}) == ["keep-best"]
    asked = {**settings, "measures": "calibration"}
    run_sweep(sweep, folder, on_run=told.append, settings=asked, save_models=True)
    assert [progress.missing_extras for progress in told] == [("models-dir", "measures")] * 2
    told.clear()
    run_sweep(sweep, folder, on_run=told.append, settings=settings)
    assert [progress.missing_extras for progress in told] == [()] * 2


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


def test_a_run_that_another_process_writes_is_not_touched(sweep, tmp_path, told):
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


def test_a_run_with_an_older_default_is_rerun(sweep, tmp_path, told):
    (run, *_) = run_sweep(sweep, tmp_path / "runs", settings={"strategy": "local"})
    change_json(run.path / "config.json", config={"learning-rate": 0.5})
    run_sweep(sweep, tmp_path / "runs", on_run=told.append, settings={"strategy": "local"})
    assert states(told) == [(1, "finished"), (2, "skipped")]
    assert len(list((tmp_path / "runs" / "aside").iterdir())) == 1


def test_a_failure_is_recorded_and_does_not_stop_the_rest(sweep, tmp_path, told, monkeypatch):
    real_run = engines.run_configuration

    def failing(configuration, *options):
        if (configuration.run.strategy, configuration.run.plan.seed) == ("local", 1):
            raise RuntimeError("the disk is on fire")
        return real_run(configuration, *options)

    monkeypatch.setattr(engines, "run_configuration", failing)
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
    configurations = [*read_sweep(path).values()]
    seeds_of = defaultdict(set)
    for configuration in configurations:
        seeds_of[configuration.run.strategy].add(configuration.run.plan.seed)
    assert "local" in seeds_of
    # Another method, or other settings of `local`.
    assert len(configurations) >= 2 * len(seeds_of["local"])
    assert len(seeds_of["local"]) >= 2
    assert all(seeds == seeds_of["local"] for seeds in seeds_of.values())


@pytest.mark.slow
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_every_sweep_of_published_runs_is_valid_and_has_a_reference(path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "results" / "sweeps")  # its networks
    assert "local" in {one.run.strategy for one in read_sweep(path).values()}


def test_a_sweep_may_have_several_grids(tmp_path):
    path = write(
        tmp_path,
        "[base]\nmodels = 'mlp'\n"
        "[[grid]]\nseed = [0, 1]\nstrategy = ['local']\n"
        "[[grid]]\nseed = [1]\nalpha = [0.1]\ncombinations = [{ strategy = 'fedavg' }]\n",
    )
    runs = [
        (one.run.strategy, one.run.plan.seed, one.run.data.alpha)
        for one in read_sweep(path).values()
    ]
    assert runs == [("local", 0, 0.5), ("local", 1, 0.5), ("fedavg", 1, 0.1)]


# ---- Folders that have runs ----------------------------------------------------------


@pytest.fixture
def seeds(tmp_path):
    return with_grid(tmp_path, "seed = [0, 1]\n")


SAME = ["round", "accuracy_mean", "loss_mean", "numbers_up", "bytes_down"]


def stop_second_run(seeds, folder, settings):
    """Interrupt a sweep of runs with several rounds once its second run has done two."""
    second = list(read_sweep(seeds, settings))[1]

    def interrupt(name, row):
        if name == second and row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(seeds, folder, settings=settings, on_round=interrupt)
    return folder / second


FOUR_ROUNDS = {"strategy": "kt-pfl", "num-server-rounds": 4, "momentum": 0.9}


def test_a_stopped_run_continues_and_equals_an_uninterrupted_one(seeds, tmp_path, told):
    whole = run_sweep(seeds, tmp_path / "whole", settings=FOUR_ROUNDS)
    folder, rows = tmp_path / "runs", []
    stopped = stop_second_run(seeds, folder, FOUR_ROUNDS)
    assert (stopped / "checkpoint").exists()

    runs = run_sweep(
        seeds, folder, on_run=told.append, settings=FOUR_ROUNDS, save_models=True,
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


@pytest.mark.parametrize(("accepts", "state"), [(False, "started"), (True, "continued")])
def test_a_stopped_run_of_another_version_continues_if_wanted(
    accepts, state, seeds, tmp_path, told
):
    folder = tmp_path / "runs"
    stopped = stop_second_run(seeds, folder, FOUR_ROUNDS)
    change_json(stopped / "config.json", project={"version": "7.1.0"})
    settings = {**FOUR_ROUNDS, "accept-changes": accepts}
    run_sweep(seeds, folder, on_run=told.append, settings=settings)
    assert [progress.state for progress in told] == ["skipped", state, "finished"]


@pytest.mark.parametrize("lost", ["server*", "clients"])
def test_a_stopped_run_without_its_checkpoint_is_rerun(lost, seeds, tmp_path, told):
    folder = tmp_path / "runs"
    stopped = stop_second_run(seeds, folder, FOUR_ROUNDS)
    for part in (stopped / "checkpoint").glob(lost):
        part.rename(tmp_path / part.name)
    runs = run_sweep(seeds, folder, on_run=told.append, settings=FOUR_ROUNDS)
    assert [progress.state for progress in told] == ["skipped", "started", "finished"]
    assert list(runs[1].rounds["round"]) == [1, 2, 3, 4]
    assert (folder / "aside" / f"{stopped.name}-1" / "rounds.jsonl").exists()


def test_a_stopped_run_with_a_damaged_round_repeats_it(seeds, tmp_path, told, logged):
    folder = tmp_path / "runs"
    stopped = stop_second_run(seeds, folder, FOUR_ROUNDS)
    matrix = stopped / "matrices" / "coefficients.npy"
    matrix.write_bytes(matrix.read_bytes()[:-20])
    runs = run_sweep(seeds, folder, on_run=told.append, settings=FOUR_ROUNDS)
    assert [progress.state for progress in told] == ["skipped", "continued", "finished"]
    assert "A round is repeated, after round 1: " in " ".join(logged())
    assert runs[1].matrices["coefficients"].shape[0] == 4
    assert not (folder / "aside").exists()


# ---- Folders that are refused -------------------------------------------------------------


@pytest.fixture
def one_run(tmp_path):
    return with_grid(tmp_path, 'strategy = ["local"]\nseed = [0]\n')


def test_a_run_directory_is_refused(one_run, tmp_path):
    (run,) = run_sweep(one_run, tmp_path / "runs")
    with pytest.raises(RunDirectoryError) as refusal:
        run_sweep(one_run, run.path)
    assert str(refusal.value) == (
        f"{run.path} is a run, not a folder of runs; choose another folder with --output-dir."
    )


@pytest.mark.parametrize(
    ("settings", "differing"),
    [
        ({"num-server-rounds": 2}, "num-server-rounds = 1 there, 2 in this sweep"),
        (
            {"num-server-rounds": 2, "models": "lenet"},
            "models = 'mlp' there, 'lenet' in this sweep; "
            "num-server-rounds = 1 there, 2 in this sweep",
        ),
    ],
)
def test_a_folder_with_runs_of_another_sweep_is_refused(settings, differing, one_run, tmp_path):
    folder = tmp_path / "runs"
    run_sweep(one_run, folder)
    with pytest.raises(RunDirectoryError) as refusal:
        run_sweep(one_run, folder, settings=settings)
    assert str(refusal.value) == (
        f"{folder} holds runs of another sweep ({differing}); "
        "choose another folder with --output-dir."
    )
    assert len(list(folder.iterdir())) == 1


def test_methods_seeds_and_their_settings_can_be_added(one_run, tmp_path):
    folder = tmp_path / "runs"
    run_sweep(one_run, folder)
    more = 'strategy = ["local", "kt-pfl"]\nseed = [0, 1]\n[grid.kt-pfl]\nrho = [0.1, 0.2]\n'
    assert len(run_sweep(with_grid(tmp_path, more), folder)) == 6
    # A value that is taken out of the grid leaves its runs where they are.
    rounds = 'strategy = ["local"]\nseed = [0]\nlearning-rate = [0.01, 0.02]\n'
    assert len(run_sweep(with_grid(tmp_path, rounds), folder)) == 2


def test_unreadable_runs_and_other_files_do_not_matter(one_run, tmp_path):
    folder = tmp_path / "runs"
    for name, text in (("damaged", "{"), ("foreign", '{"config": {}}'), ("list", "[]")):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(text)
    (folder / "notes.txt").write_text("mine")
    assert len(run_sweep(one_run, folder)) == 1


def test_methods_with_settings_of_their_own_are_run_one_after_another(tmp_path):
    """`only` leaves out runs, but the folder is that of the whole sweep."""
    combinations = (
        'seed = [0]\ncombinations = [{ strategy = "local", learning-rate = 0.02 }, '
        '{ strategy = "fedavg", learning-rate = 0.01 }]\n'
    )
    sweep, folder = with_grid(tmp_path, combinations), tmp_path / "runs"
    for method in ("local", "fedavg"):
        (run,) = run_sweep(sweep, folder, only={"strategy": method})
        assert run.config["strategy"] == method
