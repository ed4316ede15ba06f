"""A power cut at any moment costs at most one round, and no count of privacy goes back.

A recorder stands in for the disk. It keeps what has been synced: the content of a file when it is
synced, and the names of a folder when that is synced. A power cut is simulated by writing what the
disk may hold into a new folder, in three ways that POSIX allows.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL

import fedkd_flwr
from fedkd_flwr.runs import (
    RunDirectory,
    RunDirectoryError,
    checkpoint_to_continue_from,
    load_run,
    read_checkpoint,
)
from fedkd_flwr.runs.checkpoint import read_checkpoints

SETTINGS = {
    **SMALL,
    "num-clients": 2,
    "num-server-rounds": 3,
    "max-samples": 150,
    "public-size": 20,
    "held-out-size": 20,
    "models": "mlp",
}

METHODS = {
    "kt-pfl": {"strategy": "kt-pfl"},
    "persfl": {"strategy": "persfl"},
    "noised": {
        "strategy": "kt-pfl",
        "soft-predictions.clip-norm": 1.0,
        "soft-predictions.noise-multiplier": 5.0,
    },
}
"""Settings of a method with matrices, one with global models, and one that counts releases."""


class Disk:
    """Records what is durable below a folder, and copies what a power cut may leave of it."""

    def __init__(self, folder):
        self.folder = folder
        self.contents, self.names = {}, {}
        self.held = {}
        self.cuts = []
        self.releases = 0

    def synced(self, path):
        """Record a sync, after keeping the state before it."""
        self.cut()
        if path.is_dir():
            self.names[path] = {entry.name: self.number(entry) for entry in path.iterdir()}
            return
        self.contents[self.number(path)] = path.read_bytes()

    def number(self, path):
        """Return the inode of a path, which no other file gets while it is held open."""
        inode = path.stat().st_ino
        if inode not in self.held:
            self.held[inode] = os.open(path, os.O_RDONLY)
        return inode

    def close(self):
        for descriptor in self.held.values():
            os.close(descriptor)

    def cut(self):
        """Keep three states that the disk may have now."""
        now, inodes = {}, {}
        for path in self.folder.rglob("*"):
            if path.is_file():
                now[path], inodes[path] = path.read_bytes(), path.stat().st_ino
        everything = now
        # Names reach the disk before contents, as with delayed allocation.
        names_first = {path: self.contents.get(inodes[path], b"") for path in now}
        # Nothing is there that has not been synced.
        durable = {
            folder / name: self.contents[inode]
            for folder, entries in self.names.items()
            for name, inode in entries.items()
            if inode in self.contents and self.reached(folder)
        }
        for state in (everything, names_first, durable):
            state = {path.relative_to(self.folder): content for path, content in state.items()}
            if state not in [known for known, *_ in self.cuts]:
                self.cuts.append((state, self.rounds(), self.releases))

    def reached(self, folder):
        """Return whether the names of all folders above are durable."""
        above = [folder, *folder.parents]
        above = above[: above.index(self.folder)]
        return all(path.name in self.names.get(path.parent, {}) for path in above)

    def rounds(self):
        """Return how many rounds are complete at this moment."""
        if not (self.folder / "run" / "config.json").exists():
            return 0
        return read_checkpoint(self.folder / "run").completed_rounds


@pytest.fixture(scope="module", params=METHODS)
def recorded(request, tmp_path_factory):
    """An uninterrupted run, and what its disk may have held at every sync."""
    settings = {**SETTINGS, **METHODS[request.param]}
    folder = tmp_path_factory.mktemp("disk")
    disk = Disk(folder)
    real = os.fsync

    def fsync(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path == folder or folder in path.parents:
            disk.synced(path)
        real(descriptor)

    write_down = RunDirectory.about_to_ask

    def about_to_ask(directory, state):
        write_down(directory, state)
        disk.releases = int(state["releases"].sum())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(RunDirectory, "about_to_ask", about_to_ask)
        run = fedkd_flwr.run(settings, output_dir=folder / "run")
        disk.cut()
    yield run, disk
    disk.close()


def written(state, folder):
    """Write a state of the disk into a folder; return the run directory."""
    for path, content in state.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder / "run"


def assert_equal(resumed, whole):
    if (
        "epsilon" in whole.rounds
    ):  # a round that is asked for twice has other noise, and costs twice
        assert (resumed.rounds["epsilon"] >= whole.rounds["epsilon"]).all()
        assert resumed.rounds["epsilon"].is_monotonic_increasing
        return
    for column in ("round", "accuracy_mean", "loss_mean", "numbers_up"):
        assert list(resumed.rounds[column]) == list(whole.rounds[column])
    for name, matrix in whole.matrices.items():
        np.testing.assert_array_equal(resumed.matrices[name], matrix)
    assert list(resumed.clients["loss"].dropna()) == list(whole.clients["loss"].dropna())
    assert len(resumed.table("pairs")) == len(whole.table("pairs"))


def test_a_power_cut_at_any_sync_costs_at_most_one_round(recorded, tmp_path):
    whole, disk = recorded
    assert len(disk.cuts) > 60
    resumed_after = set()
    for number, (state, completed, releases) in enumerate(disk.cuts):
        path = written(state, tmp_path / str(number))
        if not (path / "config.json").exists():
            assert completed == releases == 0
            continue
        run = load_run(path)
        if run.finished:
            assert_equal(run, whole)
            continue
        checkpoint, _ = checkpoint_to_continue_from(run, str(path / "checkpoint" / "clients"))
        assert checkpoint.completed_rounds >= completed - 1
        assert checkpoint.state.get("releases", np.zeros(1)).sum() >= releases
        resumed_after.add(checkpoint.completed_rounds)
        # All states are opened; some are continued, to see that the numbers are right.
        if number % 12 == 0:
            assert_equal(fedkd_flwr.resume(path), whole)
        shutil.rmtree(path.parent)
    assert resumed_after == {0, 1, 2, 3}


CUT = (
    "rounds.jsonl",
    "clients.jsonl",
    "pairs.jsonl",
    "matrices/coefficients.npy",
    "checkpoint/server.safetensors",
    "checkpoint/notes.safetensors",
    "checkpoint/notes-copy.safetensors",
    "checkpoint/clients/*/round-000002.safetensors",
)
"""Files of a run that was stopped after its second round, by pattern."""


@pytest.fixture(scope="module", params=METHODS)
def stopped(request, tmp_path_factory):
    settings = {**SETTINGS, **METHODS[request.param]}
    folder = tmp_path_factory.mktemp("stopped")

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedkd_flwr.run(settings, output_dir=folder / "run", on_round=stop)
    return fedkd_flwr.run(settings, output_dir=folder / "whole"), folder / "run"


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("pattern", CUT)
def test_a_file_that_lost_its_end_costs_at_most_one_round(pattern, kept, stopped, tmp_path):
    whole, path = stopped
    shutil.copytree(path, tmp_path / "run")
    files = list((tmp_path / "run").glob(pattern))
    if not files:
        pytest.skip("a file of another method")
    _, before = read_checkpoints(path)
    for file in files:
        # Of a table, which had been synced in round 1, only what came later can be lost.
        least = before.sizes.get(file.relative_to(tmp_path / "run").as_posix(), 0)
        os.truncate(file, least + int(kept * (file.stat().st_size - least)))
    resumed = fedkd_flwr.resume(tmp_path / "run")
    assert resumed.description["continued"][-1]["after_round"] >= 1
    assert_equal(resumed, whole)


def test_both_counts_of_releases_lost_is_no_reason_to_count_anew(stopped, tmp_path):
    _, path = stopped
    shutil.copytree(path, tmp_path / "run")
    notes = list((tmp_path / "run" / "checkpoint").glob("notes*"))
    if not notes:
        pytest.skip("a method that releases nothing")
    for file in notes:
        file.write_bytes(b"")
    with pytest.raises(RunDirectoryError, match="cannot be continued"):
        fedkd_flwr.resume(tmp_path / "run")
