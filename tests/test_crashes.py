"""Runs that are stopped, cut off and damaged go on to the numbers of an uninterrupted run."""

import contextlib
import errno
import multiprocessing
import os
import shutil
import signal
import tempfile
from functools import cache
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from conftest import SMALL
from helpers import file_size_limit, stopped
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import fedkd_flwr
from fedkd_flwr import files
from fedkd_flwr.clients.evaluating import Evaluating
from fedkd_flwr.config import read_config
from fedkd_flwr.runs import (
    RunDirectory,
    RunDirectoryError,
    checkpoint_to_continue_from,
    load_run,
    read_checkpoint,
)
from fedkd_flwr.runs import directory as directory_module
from fedkd_flwr.runs.checkpoint import read_checkpoints

SETTINGS = {
    **{name: value for name, value in SMALL.items() if "." not in name},
    "num-clients": 2,
    "num-server-rounds": 3,
    "max-samples": 150,
    "public-size": 20,
    "held-out-size": 20,
    "models": "mlp",
    "momentum": 0.9,
}

RUNS = {
    "kt-pfl": {"strategy": "kt-pfl"},
    "persfl": {
        "strategy": "persfl",
        "persfl.distillation-epochs": 1,
        "persfl.imitation": "0,0.5",
        "persfl.temperatures": "1,5",
    },
    "noised": {
        "strategy": "kt-pfl",
        "soft-predictions.clip-norm": 1.0,
        "soft-predictions.noise-multiplier": 5.0,
    },
}
"""A method with matrices, one with global models and stage 2, and one that counts releases."""


def same_results(found, whole):
    """No line lost, none doubled, no number changed; but a round that is repeated has new noise."""
    if "epsilon" in whole.rounds:
        assert (found.rounds["epsilon"] >= whole.rounds["epsilon"] - 1e-9).all()
        assert found.rounds["epsilon"].is_monotonic_increasing
        return
    for table, expected in ((found.rounds, whole.rounds), (found.clients, whole.clients)):
        for column in (name for name in expected if not name.startswith("seconds")):
            assert table[column].equals(expected[column]), column
    np.testing.assert_equal(found.matrices, whole.matrices)
    assert len(found.table("pairs")) == len(whole.table("pairs"))


# ---- Any sequence of stops, cuts and damages -------------------------------------------


class PowerCutError(BaseException):
    """Ends a run the hard way: nothing may catch it."""


class Disk:
    """Records what is durable below a folder, and loses the rest at a sync.

    It stands in for the disk of a run. A file's content is durable once it is synced, and its name
    once its folder is. What else survives a power cut is one of three states that POSIX allows.
    """

    def __init__(self, folder, syncs):
        self.folder, self.left = folder, syncs
        self.contents, self.names, self.held = {}, {}, {}
        self.releases = self.completed = 0
        for path in [folder, *folder.rglob("*")]:
            self.keep(path)

    def keep(self, path):
        """Note that a path is on the disk as it is now."""
        if path.is_dir():
            self.names[path] = {entry.name: self.number(entry) for entry in path.iterdir()}
        else:
            self.contents[self.number(path)] = path.read_bytes()

    def number(self, path):
        """Return the inode of a path, which no other file gets while it is held open."""
        inode = path.stat().st_ino
        if inode not in self.held:
            self.held[inode] = os.open(path, os.O_RDONLY)
        return inode

    def fsync(self, descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path != self.folder and self.folder not in path.parents:
            return
        if not self.left:
            self.completed = completed_rounds(self.folder / "run")
            self.now = {p: p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}
            self.inodes = {p: p.stat().st_ino for p in self.now}
            raise PowerCutError
        self.left -= 1
        self.keep(path)

    def about_to_ask(self, directory, state, write_down=RunDirectory.about_to_ask):
        write_down(directory, state)
        self.releases = int(state["releases"].sum())

    def __enter__(self):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(os, "fsync", self.fsync)
        self.patch.setattr(RunDirectory, "about_to_ask", lambda *given: self.about_to_ask(*given))
        return self

    def __exit__(self, *_):
        self.patch.undo()
        for descriptor in self.held.values():
            os.close(descriptor)

    def reached(self, folder):
        """Return whether the names of all folders above are durable."""
        above = [folder, *folder.parents]
        above = above[: above.index(self.folder)]
        return all(path.name in self.names.get(path.parent, {}) for path in above)

    def lose(self, survives):
        """Leave on the disk what survives the cut."""
        left = {
            "everything": self.now,
            # As with delayed allocation.
            "names": {p: self.contents.get(self.inodes[p], b"") for p in self.now},
            "what was synced": {
                folder / name: self.contents[inode]
                for folder, entries in self.names.items()
                for name, inode in entries.items()
                if inode in self.contents and self.reached(folder)
            },
        }[survives]
        shutil.rmtree(self.folder / "run")
        for path, content in left.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def completed_rounds(path):
    return read_checkpoint(path).completed_rounds if (path / "config.json").exists() else 0


CONFIG_DAMAGES = {
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "garbage": lambda content: bytes(255 - byte for byte in content),
    "another list": lambda content: b"[1, 2]",
}

NEWEST = (
    "rounds.jsonl",
    "clients.jsonl",
    "evaluations.jsonl",
    "pairs.jsonl",
    "matrices/coefficients.npy",
    "checkpoint/server.safetensors",
    "checkpoint/notes.safetensors",
    "checkpoint/notes-copy.safetensors",
    "checkpoint/clients/*/*/round-{:06d}.safetensors",
)
"""Files whose end a crash in a round may cost, by pattern."""


@cache
def uninterrupted(name):
    with tempfile.TemporaryDirectory() as folder:
        run = fedkd_flwr.run({**SETTINGS, **RUNS[name]}, output_dir=Path(folder) / "run")
        _ = run.rounds, run.clients, run.matrices, run.table("pairs")
    return run


class InterruptedRun(RuleBasedStateMachine):
    """A run to which anything may happen; in the end it has the numbers of `uninterrupted`."""

    @initialize(name=st.sampled_from(list(RUNS)))
    def begin(self, name):
        self.folder = Path(tempfile.mkdtemp())
        self.settings, self.whole = {**SETTINGS, **RUNS[name]}, uninterrupted(name)
        self.run, self.has_lost = None, False

    @property
    def path(self):
        return self.folder / "run"

    @property
    def is_stopped(self):
        return self.run is None and (self.path / "config.json").exists()

    def go_on(self, **more):
        if self.is_stopped:
            return fedkd_flwr.resume(self.path, **more)
        shutil.rmtree(self.path, ignore_errors=True)
        return fedkd_flwr.run(self.settings, output_dir=self.path, **more)

    @precondition(lambda self: self.run is None)
    @rule(
        syncs=st.integers(0, 40),
        survives=st.sampled_from(["everything", "names", "what was synced"]),
    )
    def lose_power(self, syncs, survives):
        try:
            with Disk(self.folder, syncs) as disk:
                self.run = self.go_on()
        except PowerCutError:
            disk.lose(survives)
        if not self.is_stopped:
            assert self.run or disk.completed == disk.releases == 0
            return
        run, self.has_lost = load_run(self.path), True
        if run.finished:
            self.run = run
            return
        checkpoint, _ = checkpoint_to_continue_from(run, str(self.path / "checkpoint/clients"))
        assert checkpoint.completed_rounds >= disk.completed - 1
        assert checkpoint.state.get("releases", np.zeros(1)).sum() >= disk.releases

    @precondition(lambda self: self.run is None and completed_rounds(self.path) < 2)
    @rule()
    def press_ctrl_c_after_the_next_round(self):
        def stop(row):
            raise KeyboardInterrupt

        before = completed_rounds(self.path)
        with pytest.raises(KeyboardInterrupt):
            self.go_on(on_round=stop)
        assert completed_rounds(self.path) in (before, before + 1)
        self.has_lost = completed_rounds(self.path) < 2

    @precondition(lambda self: self.is_stopped and not self.has_lost)
    @rule(pattern=st.sampled_from(NEWEST), kept=st.sampled_from([0.0, 0.5, 0.9]))
    def lose_the_end_of_a_file(self, pattern, kept):
        checkpoints, completed = read_checkpoints(self.path), completed_rounds(self.path)
        for file in self.path.glob(pattern.format(completed)):
            # Of a table, which had been synced a round before, only what came later can be lost.
            name = file.relative_to(self.path).as_posix()
            least = checkpoints[1].sizes.get(name, 0)
            os.truncate(file, least + int(kept * (file.stat().st_size - least)))
            self.has_lost = True
        run = load_run(self.path)
        checkpoint, _ = checkpoint_to_continue_from(run, str(self.path / "checkpoint/clients"))
        assert checkpoint.completed_rounds >= completed - 1

    @precondition(lambda self: self.is_stopped)
    @rule(damage=st.sampled_from(list(CONFIG_DAMAGES)))
    def damage_the_config(self, damage):
        file = self.path / "config.json"
        content = file.read_bytes()
        file.write_bytes(CONFIG_DAMAGES[damage](content))
        with pytest.raises(RunDirectoryError, match=r"config\.json .*(restore|remove)") as refused:
            fedkd_flwr.resume(self.path)
        assert "\n" not in str(refused.value)
        file.write_bytes(content)

    @precondition(lambda self: self.is_stopped)
    @rule()
    def move_it(self):
        elsewhere = Path(tempfile.mkdtemp())
        self.path.rename(elsewhere / "run")
        shutil.rmtree(self.folder)
        self.folder = elsewhere

    @precondition(lambda self: self.run)
    @rule()
    def resume_it_when_it_is_finished(self):
        with pytest.raises(RunDirectoryError, match="finished run; to add rounds"):
            fedkd_flwr.resume(self.path)
        same_results(load_run(self.path), self.whole)

    def teardown(self):
        same_results(self.run or self.go_on(), self.whole)
        shutil.rmtree(self.folder)


TestInterruptedRun = InterruptedRun.TestCase
TestInterruptedRun.settings = hypothesis.settings(
    max_examples=25,
    stateful_step_count=6,
    deadline=None,
    derandomize=True,
    # Six steps are short enough to read without minutes of shrinking.
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)


# ---- Real processes, locks and full disks ----------------------------------------------


@pytest.fixture
def settings():
    return {**SETTINGS, **RUNS["kt-pfl"]}


@pytest.fixture
def whole():
    return uninterrupted("kt-pfl")


def in_child(function):
    child = multiprocessing.get_context("fork").Process(target=function)
    child.start()
    child.join(timeout=240)
    return child.exitcode


@pytest.mark.parametrize("syncs", [8, 16, 24])
def test_kill_9_loses_and_duplicates_nothing(syncs, settings, whole, tmp_path):
    def killed():
        left = iter(range(syncs))

        def fsync(descriptor):
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        os.fsync = fsync
        fedkd_flwr.run(settings, output_dir=tmp_path / "cut")

    assert in_child(killed) == -signal.SIGKILL
    assert not load_run(tmp_path / "cut").finished
    same_results(fedkd_flwr.resume(tmp_path / "cut"), whole)


@contextlib.contextmanager
def paused_in_round_two(settings, path):
    """A process that hangs in the middle of a run; its pid."""
    is_there = multiprocessing.get_context("fork").Event()

    def hangs():
        append = RunDirectory._append

        def wait(directory, name, rows):
            if rows[0]["round"] == 2:
                is_there.set()
                signal.pause()
            append(directory, name, rows)

        RunDirectory._append = wait
        fedkd_flwr.run(settings, output_dir=path)

    child = multiprocessing.get_context("fork").Process(target=hangs)
    child.start()
    try:
        assert is_there.wait(timeout=240)
        yield child.pid
    finally:
        child.kill()
        child.join()


def test_a_run_that_another_process_writes_is_refused_until_it_ends(settings, whole, tmp_path):
    path = tmp_path / "cut"
    with paused_in_round_two(settings, path) as pid:
        # A process that is stopped, as by a debugger, may go on at any time.
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(RunDirectoryError, match=rf"written by process {pid} on .*flwr stop"):
            fedkd_flwr.resume(path)
        assert len((path / "rounds.jsonl").read_text().splitlines()) == 1
    same_results(fedkd_flwr.resume(path), whole)


def test_two_runs_cannot_start_in_one_directory(settings, tmp_path):
    """Between the look for a run and the first file there is time for another."""
    configuration = read_config(settings)
    with contextlib.closing(RunDirectory.create(tmp_path / "run", configuration)) as first:
        (first.path / "config.json").unlink()
        with pytest.raises(RunDirectoryError, match=f"written by process {os.getpid()}"):
            RunDirectory.create(tmp_path / "run", configuration)


def test_a_run_that_finishes_while_waiting_for_its_lock_is_not_continued(
    settings, tmp_path, monkeypatch
):
    """The other process finishes between the look at the run and the lock."""
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    summary = tmp_path / "run" / "summary.json"
    summary.rename(tmp_path / "summary.json")

    def locked_late(path):
        (tmp_path / "summary.json").rename(summary)
        return (path / "checkpoint" / "lock").open()

    monkeypatch.setattr(directory_module, "lock_directory", locked_late)
    with pytest.raises(RunDirectoryError, match="finished run; to add rounds"):
        RunDirectory.reopen(run.path, read_config(run.config))


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (errno.ENOLCK, contextlib.nullcontext()),
        (errno.ENOTSUP, contextlib.nullcontext()),
        (errno.EIO, pytest.raises(RunDirectoryError, match=r"lock cannot be locked: Input")),
    ],
)
def test_a_file_system_without_locks_is_accepted_with_a_warning(
    number, outcome, settings, tmp_path, monkeypatch
):
    def refuse(file, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with outcome:
        RunDirectory.create(tmp_path / "run", read_config(settings)).close()


def full_in_line(monkeypatch, name):
    append = RunDirectory._append

    def refuse(directory, file_name, rows):
        if file_name != name or rows[0]["round"] != 2:
            return append(directory, file_name, rows)
        with file_size_limit((directory.path / name).stat().st_size + 40):
            return append(directory, file_name, rows)

    monkeypatch.setattr(RunDirectory, "_append", refuse)


def full_in_checkpoint(monkeypatch, name):
    save, seen = files.save_file, []

    def refuse(arrays, path, metadata):
        seen.append(path.name)
        is_meant = name in path.name and seen.count(path.name) == 2
        with file_size_limit(100) if is_meant else contextlib.nullcontext():
            return save(arrays, path, metadata)

    monkeypatch.setattr(files, "save_file", refuse)


def full_at_the_end(monkeypatch, name):
    write_json = directory_module.write_json

    def refuse(file, content):
        if file.name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_json(file, content)

    monkeypatch.setattr(directory_module, "write_json", refuse)


@pytest.mark.parametrize(
    ("arrange", "name"),
    [
        (full_in_line, "clients.jsonl"),
        (full_in_line, "rounds.jsonl"),
        (full_in_checkpoint, "server"),
        (full_at_the_end, "summary.json"),
    ],
)
def test_a_full_disk_stops_the_run_and_it_can_continue_later(
    arrange, name, settings, whole, tmp_path, monkeypatch
):
    arrange(monkeypatch, name)
    with pytest.raises(RunDirectoryError, match=r"(Round 2 .*--resume|: No space left)"):
        fedkd_flwr.run(settings, output_dir=tmp_path / "cut")
    monkeypatch.undo()
    same_results(fedkd_flwr.resume(tmp_path / "cut"), whole)


def test_clients_not_yet_asked_by_a_resumed_run_keep_their_memory(small, tmp_path):
    """One of four is asked a round, and nobody is evaluated before the end."""
    changes = {"num-server-rounds": 6, "fraction-train": 0.25, "evaluate-every": 6}
    settings = {**small, **changes, "strategy": "local", "models": "mlp"}
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")

    resumed = fedkd_flwr.resume(stopped(settings, tmp_path / "cut", last_round=3))
    assert list(resumed.clients["loss"].dropna()) == list(whole.clients["loss"].dropna())


@pytest.mark.parametrize("cohort", ["on", "off"])
def test_a_client_that_fails_in_its_evaluation_forgets_the_round(
    cohort, small, tmp_path, monkeypatch
):
    """In memory and on disk alike, so that a resumed run has the same numbers."""
    original = Evaluating.prepared

    def prepared(self, received, server_round):
        if (server_round, self.client.partition_id) == (2, 0):
            raise MemoryError
        return original(self, received, server_round)

    monkeypatch.setattr(Evaluating, "prepared", prepared)
    settings = {**small, "strategy": "local", "models": "mlp", "num-server-rounds": 4}
    settings |= {"cohort": cohort, "min-replies": 1, "on-client-error": "drop"}
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")

    resumed = fedkd_flwr.resume(stopped(settings, tmp_path / "cut", last_round=2))
    assert list(whole.rounds["failures"]) == [0, 1, 0, 0]
    assert list(resumed.clients["loss"].dropna()) == list(whole.clients["loss"].dropna())


@pytest.mark.parametrize("strategy", ["kt-pfl", "fedavg"])
def test_a_resumed_run_has_the_late_replies_of_the_round_before(strategy, small, tmp_path):
    """Those that count, and the clients that get no message until they have replied."""
    slow = {"num-server-rounds": 5, "close-after": 3.0, "delay": 4.0, "min-replies": 2}
    settings = {**small, **slow, "strategy": strategy, "models": "mlp", "local-epochs": 1}
    settings["public-size"] = settings["held-out-size"]
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")
    has_late = whole.rounds["round"][whole.rounds["failures"] > 0]
    cut = stopped(settings, tmp_path / "cut", last_round=int(has_late.iloc[0]))
    same_results(fedkd_flwr.resume(cut), whole)
