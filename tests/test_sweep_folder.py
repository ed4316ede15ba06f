"""A sweep does not write into a run directory, or among the runs of another sweep."""

import pytest
from test_sweeps import TINY

from fedkd_flwr.runs import RunDirectoryError
from fedkd_flwr.sweeps import run_sweep


@pytest.fixture
def sweep(tmp_path):
    return write(tmp_path, 'strategy = ["local"]\nseed = [0]\n')


def write(folder, grid):
    path = folder / "sweep.toml"
    path.write_text(f"{TINY}[grid]\n{grid}")
    return path


def test_a_run_directory_is_refused(sweep, tmp_path):
    (run,) = run_sweep(sweep, tmp_path / "runs")
    with pytest.raises(RunDirectoryError) as refusal:
        run_sweep(sweep, run.path)
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
def test_a_folder_with_runs_of_another_sweep_is_refused(settings, differing, sweep, tmp_path):
    folder = tmp_path / "runs"
    run_sweep(sweep, folder)
    with pytest.raises(RunDirectoryError) as refusal:
        run_sweep(sweep, folder, settings=settings)
    assert str(refusal.value) == (
        f"{folder} holds runs of another sweep ({differing}); "
        "choose another folder with --output-dir."
    )
    assert len(list(folder.iterdir())) == 1


def test_methods_seeds_and_their_settings_can_be_added(sweep, tmp_path):
    folder = tmp_path / "runs"
    run_sweep(sweep, folder)
    more = 'strategy = ["local", "kt-pfl"]\nseed = [0, 1]\n[grid.kt-pfl]\nrho = [0.1, 0.2]\n'
    assert len(run_sweep(write(tmp_path, more), folder)) == 6
    # A value that is taken out of the grid leaves its runs where they are.
    rounds = 'strategy = ["local"]\nseed = [0]\nlearning-rate = [0.01, 0.02]\n'
    assert len(run_sweep(write(tmp_path, rounds), folder)) == 2


def test_unreadable_runs_and_other_files_do_not_matter(sweep, tmp_path):
    folder = tmp_path / "runs"
    for name, text in (("damaged", "{"), ("foreign", '{"config": {}}'), ("list", "[]")):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(text)
    (folder / "notes.txt").write_text("mine")
    assert len(run_sweep(sweep, folder)) == 1


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
