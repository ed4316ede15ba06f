"""The framework of the benchmarks, on tasks that take no time worth measuring."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks import pairs


def result(name, ratio, at_most):
    return pairs.Result(name, "other", ratio, 1.0, ratio, at_most)


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
        ([], 1, "falls short: slow, 2.50 where 1.5 is due"),
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


def test_every_benchmark_is_there():
    for name in command.BENCHMARKS.values():
        assert callable(command.resolve_name(name))
