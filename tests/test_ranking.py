"""Settings of one method are ranked by validation accuracy, and by nothing else."""

import shutil

import pytest
from typer.testing import CliRunner

from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.analysis.ranking import rank, validation_accuracy
from fedkd_flwr.cli import app
from fedkd_flwr.config import ConfigError
from fedkd_flwr.runs import Run

SMALL_RHO, LARGE_RHO = "kt-pfl (rho=0.1)", "kt-pfl (rho=0.6)"


def set_validation(run: Run, accuracy: float | None) -> Run:
    """Return a run whose last round has another validation accuracy, None for no such data."""
    rows = run.round_rows
    rows[-1]["validation_accuracy_mean"] = accuracy
    return run


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    import fedkd_flwr
    from tests.conftest import SMALL

    folder = tmp_path_factory.mktemp("grid")
    base = {**SMALL, "models": "mlp", "num-server-rounds": 1}
    for name, settings in {
        "local": {"strategy": "local"},
        "small": {"kt-pfl.rho": 0.1},
        "large": {"kt-pfl.rho": 0.6},
    }.items():
        fedkd_flwr.run({**base, **settings}, output_dir=folder / name)
    return folder


def opened(grid, small, large):
    from fedkd_flwr import load_run

    runs = [load_run(grid / name) for name in ("local", "small", "large")]
    return [
        runs[0],
        set_validation(runs[1], small),
        set_validation(runs[2], large),
    ]


def test_the_settings_of_a_method_are_ordered_by_validation_accuracy(grid):
    for small, large, first in ((0.9, 0.2, SMALL_RHO), (0.2, 0.9, LARGE_RHO)):
        compared = compare(opened(grid, small, large))
        of_kt_pfl = [label for label in compared.table.index if label != "local"]
        assert of_kt_pfl[0] == first
        assert list(compared.groups) == list(compared.table.index)
        assert "The settings of kt-pfl are ranked by validation accuracy." in compared.notes
        ranked = rank(compared.groups).query("strategy == 'kt-pfl'")
        assert list(ranked["validation_accuracy"]) == [0.9, 0.2] and ranked.index[0] == first


def with_seed(run: Run, seed: int) -> Run:
    """Return a run as if it had another seed."""
    run.description["config"]["seed"] = seed
    return run


def test_settings_are_ranked_on_the_seeds_that_all_of_them_have(grid):
    local, small, large = opened(grid, 0.5, 0.4)
    easy_seed = with_seed(opened(grid, 0.5, 0.9)[2], 7)
    ranked = rank({"local": [local], SMALL_RHO: [small], LARGE_RHO: [large, easy_seed]})
    assert list(ranked.index[1:]) == [SMALL_RHO, LARGE_RHO]
    assert ranked.loc[LARGE_RHO, "validation_accuracy"] == 0.4
    with pytest.raises(ConfigError, match=r"settings of kt-pfl have no seed in common"):
        rank({"local": [local], SMALL_RHO: [small], LARGE_RHO: [easy_seed]})


def test_without_validation_data_nothing_is_ranked(grid):
    compared = compare(opened(grid, None, 0.5))
    assert any("kt-pfl are not ranked" in note for note in compared.notes)
    with pytest.raises(
        ConfigError, match="has no validation data, which ranking needs; set client-split"
    ):
        rank(compared.groups)


def test_a_run_without_a_last_evaluation_is_not_reported_as_lacking_validation_data(grid):
    runs = opened(grid, None, 0.5)
    runs[1].round_rows[-1]["accuracy_mean"] = None
    with pytest.raises(ConfigError, match=r"small .* no client was evaluated in its last round, 1"):
        validation_accuracy(runs[1])


def test_the_command_shows_a_table_a_method_and_names_runs_left_out(grid, tmp_path):
    folder = shutil.copytree(grid, tmp_path / "grid")
    (folder / "large" / "summary.json").unlink()
    shutil.copytree(grid / "large", folder / "again")
    result = CliRunner().invoke(app, ["rank", str(folder)])
    assert result.exit_code == 0
    assert SMALL_RHO in result.stdout and "validation accuracy" in result.stdout
    told = " ".join(result.stdout.split())
    assert "- large is unfinished (1 of 1 rounds) and left out." in told
