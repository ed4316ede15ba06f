"""Tests of the benchmark framework, on tasks that take almost no time."""

import os

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks import pairs, published
from benchmarks.bare import BareClient, bare_round
from benchmarks.records import current_conditions, read_records


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


def test_every_benchmark_can_be_imported():
    assert {*command.NAMED} < {*command.BENCHMARKS}
    for name in command.BENCHMARKS.values():
        assert callable(command.resolve_name(name))


# ---- Published work ------------------------------------------------------------------


CLIENTS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The samples of a few clients of digits, as a run of the benchmark finds them."""
    written = tmp_path_factory.mktemp("clients")
    further = {"dataset": "digits", "num-clients": CLIENTS, "max-samples": CLIENTS * 14}
    further |= {"fraction-train": 0.25}
    published.write_clients({**published.settings_for(""), **further}, CLIENTS, written)
    return written


def test_rows_are_ratios_of_seconds():
    theirs, ours = {"whole": 90.0, "a_round": 0.6}, {"whole": 30.0, "a_round": 0.1}
    whole, training = published.rows(theirs, ours, 100)
    assert (whole.measured, whole.baseline, whole.ratio, whole.misses_target) == (90, 30, 3, True)
    assert (training.ratio, training.misses_target) == (pytest.approx(6), False)


@pytest.mark.slow
def test_both_run_in_processes_of_their_own(folder, monkeypatch):
    # One worker of Ray is enough for twelve clients.
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", '{"CPU": 1}')
    for engine in published.ENGINES:
        found = published.measured(engine, folder, published.TEST_EVERY)
        assert 0 < found["a_round"] < found["whole"]
        assert 0 <= found["accuracy"] <= 1
