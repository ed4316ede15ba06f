"""The framework of the benchmarks, on tasks that take no time worth measuring."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks import pairs, rounds
from benchmarks.bare import BareClient, bare_round
from benchmarks.images import settings_for, write_random_images
from benchmarks.records import Record, circumstances_of, keep, read_records
from benchmarks.table import three_digits
from fedkd_flwr.config import read_config
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.data.sources import load_images


def result(name, ratio, at_most=float("inf"), at_least=0.0):
    return pairs.Result(name, "other", ratio, 1.0, ratio, at_most, at_least)


def enough():
    yield result("quick", 0.5, 1.0)


def too_little():
    yield result("quick", 0.5, 1.0)
    yield result("slow", 2.5, 1.5)


def test_two_tasks_take_turns_after_each_has_run_once():
    ran = []
    pairs.in_turns("a", lambda: ran.append("a"), "b", lambda: ran.append("b"))
    assert ran == ["a", "b"] * (1 + pairs.REPETITIONS)


def test_the_ratio_is_the_median_of_the_pairs(monkeypatch):
    # The machine slows down to a tenth in the middle; the ratio of most pairs stays 3.
    times = iter([3, 1, 3, 1, 30, 10, 30, 10, 50, 10])
    monkeypatch.setattr(pairs, "seconds", lambda task: next(times))
    measured = pairs.in_turns("a", list, "b", list, at_most=3)
    assert (measured.measured, measured.baseline, measured.ratio) == (30, 10, 3)
    assert not measured.falls_short


@pytest.mark.parametrize(("ratio", "short"), [(1.49, False), (1.51, True), (float("nan"), True)])
def test_a_result_falls_short_above_its_target(ratio, short):
    assert result("slow", ratio, 1.5).falls_short == short


@pytest.mark.parametrize(("ratio", "short"), [(4.01, False), (3.99, True), (float("nan"), True)])
def test_a_result_falls_short_below_its_target(ratio, short):
    assert result("quick", ratio, at_least=4).falls_short == short


def test_a_target_in_words():
    assert result("slow", 1, at_most=1.5).target == "at most 1.5"
    assert result("quick", 1, at_least=4).target == "at least 4"
    assert result("free", 1).target == ""


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.004321, "0.00432"), (6.454, "6.45"), (121.3, "121"), (1855.4, "1,855")],
)
def test_figures_have_three_digits(value, written):
    assert three_digits(value) == written


def test_random_images_are_a_data_set(tmp_path):
    write_random_images(tmp_path, 20)
    found = load_images("fashion-mnist", str(tmp_path))
    assert found.images.shape == (20, 1, 28, 28)
    assert found.images.unique().numel() > 200


def test_bare_rounds_learn(monkeypatch):
    """What is compared with has to do the work: its loss falls, and teachers are mixtures."""
    losses, teachers = [], []
    train, distil = BareClient.train, BareClient.distil
    monkeypatch.setattr(BareClient, "train", lambda self: losses.append(train(self)))

    def spy(self, public, teacher):
        teachers.append(teacher.clone())
        distil(self, public, teacher)

    monkeypatch.setattr(BareClient, "distil", spy)
    torch.manual_seed(0)
    play = bare_round("mlp", clients=2, train=22, test=8, public=12)
    for _ in range(8):
        play()
    assert losses[-1] < losses[1]
    torch.testing.assert_close(teachers[-1].sum(dim=1), torch.ones(12))
    assert not torch.equal(teachers[0], teachers[-1])


def test_rounds_are_timed_once_there_are_teachers():
    played = []
    found = rounds.round_pairs("mlp", 2, 8, lambda: played.append(1), repetitions=1)
    assert len(found) == 1
    assert len(played) == rounds.UNTIMED + 1
    assert found[0][0] > found[0][1]


def test_a_process_keeps_its_byte_code_and_tells_when_it_fails(monkeypatch):
    monkeypatch.setitem(os.environ, "PYTHONDONTWRITEBYTECODE", "1")
    check = "import sys; sys.exit(sys.dont_write_bytecode)"
    pairs.process(sys.executable, "-c", check)()
    with pytest.raises(subprocess.CalledProcessError):
        pairs.process(sys.executable, "-c", "raise SystemExit(3)")()


@pytest.mark.parametrize(
    ("names", "status", "said"),
    [
        (["enough"], 0, "quick"),
        ([], 1, "falls short: slow, 2.50 where at most 1.5 is due"),
        (["enough", "unheard"], 2, "no benchmark unheard"),
    ],
)
def test_a_missed_target_ends_with_status_1(monkeypatch, names, status, said):
    known = {name: f"{__name__}:{name}" for name in ("enough", "too_little")}
    monkeypatch.setattr(command, "BENCHMARKS", known)
    ended = CliRunner().invoke(command.app, names)
    assert ended.exit_code == status
    assert said in ended.output
    assert ("falls short" in ended.output) == (status == 1)


@pytest.mark.parametrize(("options", "status"), [([], 0), (["too_little"], 1), (["--all"], 1)])
def test_what_takes_long_is_run_if_it_is_asked_for(monkeypatch, options, status):
    known = {name: f"{__name__}:{name}" for name in ("enough", "too_little")}
    monkeypatch.setattr(command, "BENCHMARKS", known)
    monkeypatch.setattr(command, "LONG", ("too_little",))
    ended = CliRunner().invoke(command.app, options)
    assert ended.exit_code == status, ended.output


def broken():
    yield result("quick", 0.7, 1.0)
    raise KeyboardInterrupt


def call(monkeypatch, *words):
    names = ("enough", "too_little", "broken")
    monkeypatch.setattr(command, "BENCHMARKS", {name: f"{__name__}:{name}" for name in names})
    return CliRunner().invoke(command.app, words)


def test_rows_are_read_as_they_were_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "getloadavg", lambda: (0.52, 0.0, 0.0))  # else it may change meanwhile
    file = tmp_path / "speed.json"
    call(monkeypatch, "too_little", "--json", str(file))
    rows = read_records(file)
    assert [row.result for row in rows] == list(too_little())
    assert {row.circumstances for row in rows} == {circumstances_of(["too_little"])}
    assert rows[0].circumstances.command == "python -m benchmarks too_little"
    assert rows[0].circumstances.load == 0.5


def test_a_later_call_replaces_its_rows_and_a_stopped_one_keeps_those_it_has(monkeypatch, tmp_path):
    file = tmp_path / "speed.json"
    before = replace(circumstances_of(["too_little"]), date="2026-01-01")
    for row in too_little():
        keep(Record(row, before), file)
    assert call(monkeypatch, "broken", "--json", str(file)).exit_code
    quick, slow = read_records(file)
    assert (quick.result.ratio, slow.result.ratio) == (0.7, 2.5)
    assert quick.circumstances.date > slow.circumstances.date == "2026-01-01"


@pytest.mark.parametrize("content", ["{", "{}", '{"a": 1}', "[1]", '[{"name": "quick"}]'])
def test_a_file_of_something_else_is_refused_and_left(monkeypatch, tmp_path, content):
    file = tmp_path / "run.json"
    file.write_text(content)
    ended = call(monkeypatch, "enough", "--json", str(file))
    assert (ended.exit_code, file.read_text()) == (2, content)
    assert "does not hold rows of benchmarks" in " ".join(ended.output.replace("│", "").split())


def test_a_folder_that_is_not_there_is_named(monkeypatch, tmp_path):
    ended = call(monkeypatch, "enough", "--json", str(tmp_path / "nowhere" / "speed.json"))
    assert (ended.exit_code, "there is no folder" in ended.output) == (2, True)


def test_every_benchmark_is_there():
    assert {*command.LONG} < {*command.BENCHMARKS}
    for name in command.BENCHMARKS.values():
        assert callable(command.resolve_name(name))


@pytest.mark.parametrize(("samples", "trained_on"), [(800, 600), (30, 22)])
def test_clients_train_on_as_many_samples_as_the_rows_say(samples, trained_on, tmp_path):
    write_random_images(tmp_path, samples + 20)
    settings = settings_for(tmp_path, "mlp", 1, **{"held-out-size": 20, "public-size": 20})
    client = load_client(read_config(settings).run.data_plan, 0)
    assert (len(client.train_labels), len(client.test_labels)) == (trained_on, samples - trained_on)
