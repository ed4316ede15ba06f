"""Sweeps and searches that leave the number of clients to the data are continued like others."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from helpers import png

from fedkd_flwr.config import read_config
from fedkd_flwr.sweeps import read_sweep, run_sweep
from fedkd_flwr.tuning import tune
from fedkd_flwr.tuning.study import MethodSearch

SETTINGS = {
    "strategy": "local", "client-column": "writer", "num-clients": 0, "public-dataset": "none",
    "held-out-size": 0, "num-server-rounds": 2, "local-epochs": 1,
    "models": "mlp", "device": "cpu", "torch-threads": 1,
}  # fmt: skip


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "table.parquet", writers=4)


def write_table(path, writers):
    images = [png(np.full((4, 4), number, dtype=np.uint8)) for number in range(120)]
    columns = {
        "image": images,
        "label": [number // writers % 3 for number in range(120)],
        "writer": [f"w{number % writers}" for number in range(120)],
    }
    pa.parquet.write_table(pa.table(columns), path)
    return f"folder:{path}"


@pytest.fixture
def sweep(table, tmp_path):
    path = tmp_path / "sweep.toml"
    lines = [f"{key} = {value!r}" for key, value in {**SETTINGS, "dataset": table}.items()]
    path.write_text("\n".join(["[base]", *lines, "[grid]", "seed = [0, 1]"]))
    return path


def test_a_sweep_skips_what_is_finished(sweep, tmp_path):
    told = []
    for _ in range(2):
        runs = run_sweep(sweep, tmp_path / "runs", on_run=told.append)
        assert [run.config["num-clients"] for run in runs] == [4, 4]
    assert [progress.state for progress in told[-2:]] == ["skipped", "skipped"]


def test_some_runs_are_chosen_by_what_the_sweep_says(sweep, tmp_path):
    for seed in (0, 1):
        only = {"seed": seed, "num-clients": 0}
        (run,) = run_sweep(sweep, tmp_path / "runs", only=only)
        assert run.config["seed"] == seed


def test_the_next_sweep_of_a_process_counts_the_clients_of_a_changed_table(sweep, tmp_path):
    run_sweep(sweep, tmp_path / "first")
    write_table(tmp_path / "table.parquet", writers=3)
    runs = run_sweep(sweep, tmp_path / "second")
    assert [run.config["num-clients"] for run in runs] == [3, 3]


def test_a_search_continues_its_runs(table, tmp_path):
    changes = {"client-split": "60/20/20", "evaluated-split": "validation"}
    search = MethodSearch(
        strategy="local",
        values=read_config({**SETTINGS, "dataset": table, **changes}).flat(),
        seeds=(0,),
        budget=1,
        steps_of_local=1,
        folder=tmp_path / "local",
    )
    for rung in (1, 2):
        search.runs.advance(0, 0, {}, rung)
    assert [path.name for path in search.folder.iterdir()] == ["trial-000-seed0"]


def test_the_sweep_of_a_tuning_finds_its_data_from_any_folder(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = {"dataset": "folder:table.parquet", "data-root": "sets", "client-split": "60/20/20"}
    tuning = tune({**SETTINGS, **own}, [], "tuning", budget=1, seeds=1, fresh_seeds=1)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (run,) = read_sweep(tuning.sweep).values()
    assert run.run.data.dataset == table
    assert run.run.data.data_root == str(tmp_path / "sets")
    for _ in range(2):
        assert len(run_sweep(tuning.sweep, "runs")) == 1
