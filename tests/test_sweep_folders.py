"""A sweep in a folder that has runs: it continues or reruns its own, and refuses others'."""

import pytest
from helpers import change_json
from test_sweeps import TINY

from fedkd_flwr.runs import RunDirectoryError
from fedkd_flwr.sweeps import read_sweep, run_sweep


@pytest.fixture
def sweep(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(TINY + "[grid]\nseed = [0, 1]\n")
    return path


@pytest.fixture
def told():
    return []


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


def test_a_stopped_run_continues_and_equals_an_uninterrupted_one(sweep, tmp_path, told):
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


@pytest.mark.parametrize(("accepts", "state"), [(False, "started"), (True, "continued")])
def test_a_stopped_run_of_another_version_continues_if_wanted(
    accepts, state, sweep, tmp_path, told
):
    folder = tmp_path / "runs"
    stopped = stop_second_run(sweep, folder, FOUR_ROUNDS)
    change_json(stopped / "config.json", project={"version": "7.1.0"})
    settings = {**FOUR_ROUNDS, "accept-changes": accepts}
    run_sweep(sweep, folder, on_run=told.append, settings=settings)
    assert [progress.state for progress in told] == ["skipped", state, "finished"]


@pytest.mark.parametrize("lost", ["server*", "clients"])
def test_a_stopped_run_without_its_checkpoint_is_rerun(lost, sweep, tmp_path, told):
    folder = tmp_path / "runs"
    stopped = stop_second_run(sweep, folder, FOUR_ROUNDS)
    for part in (stopped / "checkpoint").glob(lost):
        part.rename(tmp_path / part.name)
    runs = run_sweep(sweep, folder, on_run=told.append, settings=FOUR_ROUNDS)
    assert [progress.state for progress in told] == ["skipped", "started", "finished"]
    assert list(runs[1].rounds["round"]) == [1, 2, 3, 4]
    assert (folder / "aside" / f"{stopped.name}-1" / "rounds.jsonl").exists()


def test_a_stopped_run_with_a_damaged_round_repeats_it(sweep, tmp_path, told, logged):
    folder = tmp_path / "runs"
    stopped = stop_second_run(sweep, folder, FOUR_ROUNDS)
    matrix = stopped / "matrices" / "coefficients.npy"
    matrix.write_bytes(matrix.read_bytes()[:-20])
    runs = run_sweep(sweep, folder, on_run=told.append, settings=FOUR_ROUNDS)
    assert [progress.state for progress in told] == ["skipped", "continued", "finished"]
    assert "A round is repeated, after round 1: " in " ".join(logged())
    assert runs[1].matrices["coefficients"].shape[0] == 4
    assert not (folder / "aside").exists()


# ---- Folders that are refused -------------------------------------------------------------


@pytest.fixture
def one_run(tmp_path):
    return write(tmp_path, 'strategy = ["local"]\nseed = [0]\n')


def write(folder, grid):
    path = folder / "sweep.toml"
    path.write_text(f"{TINY}[grid]\n{grid}")
    return path


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
    assert len(run_sweep(write(tmp_path, more), folder)) == 6
    # A value that is taken out of the grid leaves its runs where they are.
    rounds = 'strategy = ["local"]\nseed = [0]\nlearning-rate = [0.01, 0.02]\n'
    assert len(run_sweep(write(tmp_path, rounds), folder)) == 2


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
    sweep, folder = write(tmp_path, combinations), tmp_path / "runs"
    for method in ("local", "fedavg"):
        (run,) = run_sweep(sweep, folder, only={"strategy": method})
        assert run.config["strategy"] == method
