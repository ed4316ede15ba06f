"""The benchmark for a limited time on a GPU: what is stored is kept, and the time is respected."""

import time

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import gpu
from benchmarks.cohort import Clients
from benchmarks.pairs import Result, time_alternately
from benchmarks.records import Record, current_conditions, read_records, save_record

LATER, PASSED = float("inf"), float("-inf")


@pytest.fixture
def rows():
    """Two rows, and the names of those that were measured."""
    measured = []

    def row(name):
        def measure():
            measured.append(name)
            return Result(name, "other", 2.0, 1.0, 2.0)

        return name, measure

    return [row("first"), row("second")], measured


@pytest.fixture
def commands(monkeypatch):
    """The commands of processes that the benchmark would start, with their time limits."""
    started = []

    def start(command, check, timeout):
        started.append((list(map(str, command)), timeout))

    monkeypatch.setattr(gpu.subprocess, "run", start)
    return started


def test_rows_of_the_file_are_not_measured_again(rows, tmp_path):
    given, measured = rows
    stored = Result("first", "other", 9.0, 1.0, 9.0)
    save_record(Record(stored, current_conditions(["gpu"])), tmp_path / "gpu.json")
    found = gpu.measure_rows(iter(given), tmp_path / "gpu.json", LATER)
    assert measured == ["second"]
    assert [result.ratio for result in found] == [9.0, 2.0]


def test_a_passed_deadline_starts_nothing(rows, commands, tmp_path):
    given, measured = rows
    assert gpu.measure_rows(iter(given), tmp_path / "gpu.json", PASSED) == []
    finished = gpu.run_experiment(gpu.EXPERIMENTS[0], tmp_path, "", "cpu", True, PASSED)
    assert (measured, commands, finished) == ([], [], False)


def test_rows_are_stored_one_by_one(rows, tmp_path):
    given, _ = rows

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gpu.measure_rows(iter([given[0], ("broken", interrupted)]), tmp_path / "gpu.json", LATER)
    assert [record.result.name for record in read_records(tmp_path / "gpu.json")] == ["first"]


def test_an_experiment_does_one_seed_after_another_within_the_time_left(commands, tmp_path):
    experiment = gpu.EXPERIMENTS[0]
    deadline = time.monotonic() + 100
    assert gpu.run_experiment(experiment, tmp_path, "DATA", "cuda", False, deadline)
    assert len(commands) == experiment.seeds
    for seed, (command, timeout) in enumerate(commands):
        assert command[-2:] == ["--only", f"seed={seed}"]
        assert {"device=cuda", "data-root=DATA"} <= {*command}
        assert 0 < timeout <= 100


def test_an_interrupted_experiment_is_not_complete(monkeypatch, tmp_path):
    def interrupt(command, check, timeout):
        raise gpu.subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(gpu.subprocess, "run", interrupt)
    assert not gpu.run_experiment(gpu.EXPERIMENTS[0], tmp_path, "", "cpu", True, LATER)


def test_rows_are_in_the_order_of_their_value(monkeypatch):
    monkeypatch.setattr(gpu, "Clients", None)  # nothing is built before it is measured
    names = [name for name, _ in gpu.full_rows("cuda")]
    twenty = [f"20 {model} clients on cuda, one by one" for model in ("lenet", "cnn", "resnet18")]
    alone = [f"a {model} client on cuda, float32" for model in ("resnet18", "vgg11")]
    hundred = [f"100 {model} clients on cuda, one by one" for model in ("lenet", "cnn")]
    assert names == [*twenty, *alone, *hundred]


def test_cohorts_train_as_clients_one_by_one(monkeypatch):
    monkeypatch.setattr("benchmarks.cohort.cohort_size", lambda architecture, cohort: 2)

    def trained(train):
        torch.manual_seed(0)
        clients = Clients.build("mlp", 3, 5, "cpu")
        before = [model.state_dict()["1.weight"].clone() for model in clients.models]
        getattr(clients, train)()
        after = [model.state_dict()["1.weight"] for model in clients.models]
        assert not any(map(torch.equal, before, after))
        return after

    for alone, together in zip(
        trained("train_one_by_one"), trained("train_in_cohorts"), strict=True
    ):
        torch.testing.assert_close(alone, together)


def test_a_pair_is_repeated_as_often_as_asked():
    ran = []
    time_alternately("a", lambda: ran.append("a"), "b", lambda: ran.append("b"), repetitions=2)
    assert ran == ["a", "b"] * 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU where there is none")
def test_without_a_gpu_it_says_what_to_type():
    ended = CliRunner().invoke(gpu.app, [])
    assert (ended.exit_code, "try --smoke" in ended.output) == (2, True)


@pytest.mark.slow
def test_smoke_does_every_part(tmp_path):
    words = ["--smoke", "--json", tmp_path / "gpu.json", "--output-dir", tmp_path / "runs"]
    ended = CliRunner().invoke(gpu.app, list(map(str, words)))
    assert ended.exit_code == 0, ended.output
    assert len(read_records(tmp_path / "gpu.json")) == 2
    for experiment in gpu.EXPERIMENTS:
        assert f"{experiment.sweep}: complete" in ended.output
        assert len(list((tmp_path / "runs" / experiment.sweep).glob("*/summary.json"))) == 1
