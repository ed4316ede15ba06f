"""Tests of the benchmark framework, on tasks that take almost no time."""

import os
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks import gpu, pairs
from benchmarks.bare import BareClient, bare_round, settings_for
from benchmarks.cohort import Clients
from benchmarks.records import Record, current_conditions, read_records, save_record
from fedkd_flwr.config import read_config
from fedkd_flwr.custom_objects.naming import name_objects
from fedkd_flwr.data.clients import load_client


def result(name, ratio, at_most=None, at_least=None):
    return pairs.Result(name, "other", ratio, 1.0, ratio, at_most, at_least)


def enough():
    yield result("quick", 0.5, 1.0)


def too_little():
    yield result("quick", 0.5, 1.0)
    yield result("slow", 2.5, 1.5)


def test_the_ratio_is_the_median_of_the_pairs(monkeypatch):
    # The machine slows down to a tenth in the middle; the ratio of most pairs stays 3.
    times = iter([3, 1, 3, 1, 30, 10, 30, 10, 50, 10])
    monkeypatch.setattr(pairs, "seconds", lambda task: next(times))
    measured = pairs.time_alternately("a", list, "b", list, at_most=3)
    assert (measured.measured, measured.baseline, measured.ratio) == (30, 10, 3)
    assert not measured.misses_target


@pytest.mark.parametrize(
    ("ratio", "target", "short"),
    [
        (1.49, {"at_most": 1.5}, False), (1.51, {"at_most": 1.5}, True),
        (4.01, {"at_least": 4}, False), (3.99, {"at_least": 4}, True),
        (float("nan"), {"at_most": 1.5}, True), (float("nan"), {"at_least": 4}, True),
    ],
)  # fmt: skip
def test_a_ratio_on_the_wrong_side_of_its_target_misses_it(ratio, target, short):
    assert result("task", ratio, **target).misses_target == short


def test_bare_rounds_learn(monkeypatch):
    """The baseline must do real work: its loss falls, and teachers are averages."""
    losses, teachers = [], []
    train, distill = BareClient.train, BareClient.distill
    monkeypatch.setattr(BareClient, "train", lambda self: losses.append(train(self)))

    def spy(self, public, teacher):
        teachers.append(teacher.clone())
        distill(self, public, teacher)

    monkeypatch.setattr(BareClient, "distill", spy)
    torch.manual_seed(0)
    run_round = bare_round("mlp", clients=2, train=22, test=8, public=12)
    for _ in range(8):
        run_round()
    assert losses[-1] < losses[1]
    torch.testing.assert_close(teachers[-1].sum(dim=1), torch.ones(12))
    assert not torch.equal(teachers[0], teachers[-1])


def broken():
    yield result("quick", 0.7, 1.0)
    raise KeyboardInterrupt


def call(monkeypatch, *words):
    names = ("enough", "too_little", "broken")
    monkeypatch.setattr(command, "BENCHMARKS", {name: f"{__name__}:{name}" for name in names})
    return CliRunner().invoke(command.app, words)


@pytest.mark.parametrize(
    ("names", "only_if_named", "status", "said"),
    [
        (["enough"], (), 0, "quick"),
        (["enough", "unknown"], (), 2, "no benchmark unknown"),
        ([], ("broken",), 1, "target missed: slow: ratio 2.50, target at most 1.5"),
        ([], ("broken", "too_little"), 0, "quick"),
        (["too_little"], ("too_little",), 1, "target missed"),
    ],
)
def test_a_missed_target_ends_with_status_1(monkeypatch, names, only_if_named, status, said):
    monkeypatch.setattr(command, "NAMED", only_if_named)
    ended = call(monkeypatch, *names)
    assert ended.exit_code == status
    assert said in ended.output
    assert ("target missed" in ended.output) == (status == 1)


def test_rows_are_read_as_they_were_written(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "getloadavg", lambda: (0.52, 0.0, 0.0))  # else it may change meanwhile
    file = tmp_path / "speed.json"
    call(monkeypatch, "too_little", "--json", str(file))
    rows = read_records(file)
    assert [row.result for row in rows] == list(too_little())
    assert {row.conditions for row in rows} == {current_conditions(["too_little"])}
    assert rows[0].conditions.command == "python -m benchmarks too_little"
    assert rows[0].conditions.load == 0.5


def test_a_later_call_replaces_rows_even_if_it_is_interrupted(monkeypatch, tmp_path):
    file = tmp_path / "speed.json"
    before = replace(current_conditions(["too_little"]), date="2026-01-01")
    for row in too_little():
        save_record(Record(row, before), file)
    assert call(monkeypatch, "broken", "--json", str(file)).exit_code
    quick, slow = read_records(file)
    assert (quick.result.ratio, slow.result.ratio) == (0.7, 2.5)
    assert quick.conditions.date > slow.conditions.date == "2026-01-01"


@pytest.mark.parametrize("content", ["{", "{}", '{"a": 1}', "[1]", '[{"name": "quick"}]'])
def test_other_files_are_refused_and_left_unchanged(monkeypatch, tmp_path, content):
    file = tmp_path / "run.json"
    file.write_text(content)
    ended = call(monkeypatch, "enough", "--json", str(file))
    assert (ended.exit_code, file.read_text()) == (2, content)
    assert "does not hold rows of benchmarks" in " ".join(ended.output.replace("│", "").split())


def test_every_benchmark_can_be_imported():
    assert {*command.NAMED} < {*command.BENCHMARKS}
    for name in command.BENCHMARKS.values():
        assert callable(command.resolve_name(name))


@pytest.mark.parametrize(("samples", "trained_on"), [(800, 600), (30, 22)])
def test_clients_train_on_the_number_of_samples_in_the_row_names(samples, trained_on):
    public = {"held-out-size": 20, "public-size": 20}
    settings = name_objects(settings_for("mlp", 1, samples + 20, **public))
    client = load_client(read_config(settings).run.data_plan, 0)
    assert (len(client.train_labels), len(client.test_labels)) == (trained_on, samples - trained_on)


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

    alone, together = map(trained, ("train_one_by_one", "train_in_cohorts"))
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other)


def test_each_row_is_named_after_its_device():
    assert gpu.time_cohort("mlp", 2, "cpu", samples=8).name == "2 mlp clients on cpu, one by one"
    assert gpu.time_bf16("mlp", "cpu", samples=8).name == "a mlp client on cpu, float32"


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU where there is none")
def test_without_a_gpu_it_says_so():
    ended = CliRunner().invoke(command.app, ["gpu"])
    assert (ended.exit_code, "has no GPU" in ended.output) == (2, True)
