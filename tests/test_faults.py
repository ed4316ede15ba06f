"""Injected faults: hostile nodes, crashes between any two writes, a full disk, a long run."""

import contextlib
import errno
import gc
import logging
import multiprocessing
import os
import resource
import signal
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

import fedkd_flwr
from fedkd_flwr import files
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import read_config
from fedkd_flwr.engines import flower_log_level
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.memory import MemoryFolder, forget_old_runs
from fedkd_flwr.runs import RunDirectory, RunDirectoryError, lock
from fedkd_flwr.runs import directory as directory_module
from fedkd_flwr.server_app import serve
from strategies.core.replies import TooFewRepliesError
from strategies.core.rounds import RowObserver

HOSTILE = 1
SAME = ["round", "accuracy_mean", "accuracy_std", "loss_mean", "numbers_up", "numbers_down"]
MEGABYTE = 2**20


# ---- Hostile nodes ---------------------------------------------------------------------


def predictions(change):
    """Return a fault that changes the predictions of a reply."""

    def fault(reply):
        honest = reply.content["arrays"]["predictions"].numpy().copy()
        changed = change(honest)
        array = changed if isinstance(changed, Array) else Array(changed)
        reply.content["arrays"] = ArrayRecord({"predictions": array})

    return fault


def with_entry(value):
    def change(honest):
        honest[0, 0] = value
        return honest

    return change


def impersonate(reply):
    reply.content["info"] = ConfigRecord({"partition-id": HOSTILE + 1, "model": "mlp"})


@cache
def written_zeros():
    """Return 200 MB as they go over the wire, written once: writing leaves holes in the heap."""
    return Array(np.zeros((25 * MEGABYTE, 2), dtype=np.float32)).data


def large(honest):
    """Bytes of its own for every message, so that messages which are not gone are counted."""
    data = bytes(memoryview(written_zeros()))
    return Array("float32", (25 * MEGABYTE, 2), "numpy.ndarray", data)


def large_in_disguise(honest):
    """Claims the right shape and carries 200 MB."""
    return Array("float32", honest.shape, "numpy.ndarray", large(honest).data)


def silence(reply):
    raise RuntimeError("gone")


def wrong_and_certain(honest):
    """Well-formed poisoned predictions: one-hot, and never the class that the client predicts."""
    classes = honest.shape[1]
    return np.eye(classes, dtype=np.float32)[(honest.argmax(axis=1) + 1) % classes]


FAULTS = {
    "NaN or infinity": predictions(with_entry(np.nan)),
    "beyond 1e+08": predictions(with_entry(1e38)),
    "has shape": predictions(lambda honest: honest[:-1]),
    "has a row that sums to 2, not 1": predictions(lambda honest: 2 * honest),
    "has shape (26214400, 2)": predictions(large),
    "larger than its shape": predictions(large_in_disguise),
    "claims to be partition 2": impersonate,
}
"""Faults of the hostile node, one per round in turn, by the recorded reason."""


def run_with(fault_of_round, settings, path):
    """Run in this process; ``fault_of_round(round)`` breaks the replies of one client."""

    def serve_message(message, context):
        reply = client_app(message, context)
        config = message.content.config_records["config"]
        is_train = message.metadata.message_type == "train"
        if fault_of_round and is_train and context.node_config["partition-id"] == HOSTILE:
            fault_of_round(config["server-round"])(reply)
        return reply

    configuration = read_config({**settings, "output-dir": str(path)})
    grid = InProcessGrid(serve_message, configuration.run.plan.num_clients, configuration.flat())
    with flower_log_level(logging.ERROR):
        return serve(grid, configuration)


def honest_accuracy(run):
    rows = run.clients[run.clients["partition_id"] != HOSTILE].dropna(subset="accuracy")
    return rows[rows["round"] == rows["round"].max()]["accuracy"].mean()


def memory(name):
    """Return a figure of /proc/self/status in MB: VmRSS (now) or VmHWM (peak)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def forget_peak():
    Path("/proc/self/clear_refs").write_text("5")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["kt-pfl", "perfed-ckt"])
def test_a_hostile_node_does_not_affect_others_for_twenty_rounds(strategy, small, tmp_path):
    settings = {**small, "strategy": strategy, "models": "mlp"}
    settings |= {"max-samples": 600, "num-server-rounds": 20, "evaluate-every": 20}
    without = run_with(lambda r: silence, settings, tmp_path / "without")
    honest = run_with(None, settings, tmp_path / "honest")
    reasons = list(FAULTS)
    written_zeros()
    gc.collect()
    gc.disable()
    forget_peak()
    before = memory("VmRSS")
    try:
        faulty = lambda r: FAULTS[reasons[r % len(FAULTS)]]  # noqa: E731
        hostile = run_with(faulty, settings, tmp_path / "hostile")
    finally:
        gc.enable()
    peak = memory("VmHWM") - before
    # Counted, and named.
    assert list(hostile.rounds["failures"]) == [1] * 20
    assert list(hostile.rounds["replies"]) == [3] * 20
    failures = hostile.clients[hostile.clients["failure"].notna()]
    assert set(failures["partition_id"]) == {HOSTILE}
    for server_round, reason in zip(failures["round"], failures["failure"], strict=True):
        assert reasons[server_round % len(FAULTS)] in reason
    print(f"{strategy}: {peak:.0f} MB at most for the hostile node's 200 MB")
    # One message at a time, gone once it is read: those of all rounds, waiting for a garbage
    # collector, were six times as much.
    assert peak < 1.5 * 200, f"{peak:.0f} MB"
    # The others end exactly as if it had been silent.
    assert honest_accuracy(hostile) == honest_accuracy(without)
    # At most 3 of the 60 test images differ, in either direction.
    assert round(abs(honest_accuracy(hostile) - honest_accuracy(honest)), 9) <= 0.05


def test_poisoned_predictions_pass_the_checks_and_do_limited_harm(small, tmp_path):
    """No check can tell; results/robustness.md has the figures of a larger experiment."""
    settings = {**small, "strategy": "kt-pfl", "models": "mlp"}
    settings |= {"num-server-rounds": 10, "evaluate-every": 10}
    lying = run_with(lambda r: predictions(wrong_and_certain), settings, tmp_path / "lying")
    without = run_with(lambda r: silence, settings, tmp_path / "without")
    assert not lying.rounds["failures"].any()
    assert honest_accuracy(lying) > honest_accuracy(without) - 0.1


# ---- Crashes and full disks ------------------------------------------------------------


def in_child(function):
    """Run a function in a forked child and return how the child ended."""
    child = multiprocessing.get_context("fork").Process(target=function)
    child.start()
    child.join(timeout=240)
    return child.exitcode


def power_cut():
    os.kill(os.getpid(), signal.SIGKILL)


def cut_in_line(name):
    """Lose power half-way through the lines that round 2 adds to a file."""

    def arrange():
        append = RunDirectory._append

        def half(directory, file_name, rows):
            append(directory, file_name, rows)
            if file_name == name and rows[0]["round"] == 2:
                path = directory.path / name
                os.truncate(path, path.stat().st_size - 40)
                power_cut()

        RunDirectory._append = half

    return arrange


def cut_in_safetensors(is_meant, half):
    """Lose power while a checkpoint is written, or between writing and renaming it."""

    def arrange():
        save, seen = files.save_file, []

        def cut(arrays, path, metadata):
            save(arrays, path, metadata)
            seen.append(str(path))
            if is_meant(path, sum(name == str(path) for name in seen)):
                if half:
                    os.truncate(path, path.stat().st_size // 2)
                power_cut()

        files.save_file = cut

    return arrange


def cut_in_matrix(kept):
    """Lose power in round 2 while a matrix is appended, with a share of its bytes written."""

    def arrange():
        append = directory_module.append_array

        def cut(path, matrix):
            before = path.stat().st_size if path.exists() else 0
            append(path, matrix)
            if before:
                os.truncate(path, before + int(kept * (path.stat().st_size - before)))
                power_cut()

        directory_module.append_array = cut

    return arrange


def server_checkpoint(path, times):
    return "server" in path.name and times == 2


def client_memory(path, times):
    return path.parent.parent.name == "2" and "round-000002" in path.name


CUTS = {
    "in clients.jsonl": cut_in_line("clients.jsonl"),
    "in rounds.jsonl": cut_in_line("rounds.jsonl"),
    "in the server's checkpoint": cut_in_safetensors(server_checkpoint, half=True),
    "before the server's checkpoint is in place": cut_in_safetensors(server_checkpoint, half=False),
    "in a client's memory": cut_in_safetensors(client_memory, half=True),
    "before a client's memory is in place": cut_in_safetensors(client_memory, half=False),
    "in a node's memory": cut_in_safetensors(client_memory, half=True),
    "before a node's memory is in place": cut_in_safetensors(client_memory, half=False),
    "in the header of a matrix": cut_in_matrix(0.1),
    "in a matrix": cut_in_matrix(0.9),
    "after a matrix": cut_in_matrix(1.0),
}


def same_results(resumed, whole):
    """No line lost, none doubled, no number changed."""
    for column in SAME:
        assert list(resumed.rounds[column]) == list(whole.rounds[column])
    keys = ["round", "partition_id"]
    assert resumed.clients[keys].values.tolist() == whole.clients[keys].values.tolist()
    assert list(resumed.clients["loss"].dropna()) == list(whole.clients["loss"].dropna())
    assert resumed.matrices.keys() == whole.matrices.keys()
    for name, matrix in whole.matrices.items():
        np.testing.assert_array_equal(resumed.matrices[name], matrix)


@pytest.fixture(scope="module")
def settings():
    from conftest import SMALL

    return {**SMALL, "strategy": "kt-pfl", "num-server-rounds": 3}


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory):
    return fedkd_flwr.run(settings, output_dir=tmp_path_factory.mktemp("whole") / "run")


def run_as_nodes(settings, path):
    """Run with clients that write their memories themselves, each to its own folder."""
    folders = {"output-dir": str(path), "state-dir": str(path / "checkpoint" / "clients")}
    configuration = read_config({**settings, **folders})
    return serve(InProcessGrid(client_app, 4, configuration.flat()), configuration)


@pytest.mark.parametrize("cut", CUTS)
def test_kill_9_between_any_two_writes_loses_and_duplicates_nothing(cut, settings, whole, tmp_path):
    def killed():
        CUTS[cut]()
        if "node's memory" in cut:
            run_as_nodes(settings, tmp_path / "cut")
        fedkd_flwr.run(settings, output_dir=tmp_path / "cut")

    assert in_child(killed) == -signal.SIGKILL
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


def test_a_full_disk_holds_the_lock_without_a_name(settings, tmp_path):
    configuration = read_config(settings)
    with file_size_limit(0):
        lock_file = lock.lock_directory(tmp_path / "run")
    with pytest.raises(RunDirectoryError, match="being written by another process"):
        RunDirectory.create(tmp_path / "run", configuration)
    lock_file.close()
    RunDirectory.create(tmp_path / "run", configuration).close()


@contextlib.contextmanager
def file_size_limit(size):
    """Let the kernel refuse to write a file beyond a size, as it does on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


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


@pytest.mark.parametrize(
    ("arrange", "name"),
    [
        (full_in_line, "clients.jsonl"),
        (full_in_line, "rounds.jsonl"),
        (full_in_checkpoint, "server"),
    ],
)
def test_a_full_disk_stops_the_run_and_it_can_continue_later(
    arrange, name, settings, whole, tmp_path, monkeypatch
):
    arrange(monkeypatch, name)
    with pytest.raises(RunDirectoryError, match=r"Round 2 cannot be written.*--resume"):
        fedkd_flwr.run(settings, output_dir=tmp_path / "cut")
    monkeypatch.undo()
    same_results(fedkd_flwr.resume(tmp_path / "cut"), whole)


def test_a_nodes_full_disk_drops_that_node_with_its_reason(settings, tmp_path, monkeypatch):
    save = files.save_file

    def refuse(arrays, path, metadata):
        with file_size_limit(100) if client_memory(path, 1) else contextlib.nullcontext():
            return save(arrays, path, metadata)

    monkeypatch.setattr(files, "save_file", refuse)
    run = run_as_nodes(settings, tmp_path / "run")
    assert list(run.rounds["replies"]) == [4, 3, 4]
    failure = run.clients[run.clients["failure"].notna()].iloc[0]
    assert (failure["round"], failure["partition_id"]) == (2, 2)
    assert "File too large" in failure["failure"]


def test_a_nodes_memory_of_another_run_is_not_used(settings, tmp_path):
    """A node keeps its state-dir for years; run B must not find run A's model there."""
    own = {"strategy": "local", "models": "mlp", "fraction-train": 0.5}
    runs = {}
    for folder in ("used", "fresh"):
        state_dir = {"state-dir": str(tmp_path / folder)}
        if folder == "used":
            fedkd_flwr.run({**settings, **own, **state_dir, "seed": 1}, output_dir=tmp_path / "a")
        runs[folder] = fedkd_flwr.run(
            {**settings, **own, **state_dir, "seed": 2}, output_dir=tmp_path / f"b-{folder}"
        )
    assert list(runs["used"].clients["loss"]) == list(runs["fresh"].clients["loss"])


def memories(folder):
    return {path.parent.name for path in folder.glob("*/round-*.safetensors")}


@pytest.mark.parametrize("served", range(1, 9))
@pytest.mark.parametrize("keep", range(9))
def test_a_node_keeps_the_memory_of_its_last_runs(keep, served, tmp_path):
    # By name "a" is the last and by time the first: what is being served stays.
    names = "ahgfedcb"[:served]
    for age, name in enumerate(names):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "round-000001.safetensors").write_bytes(b"")
        os.utime(folder, (age, age))
    (tmp_path / "not a run").mkdir()
    forget_old_runs(MemoryFolder(tmp_path / "a"), keep)
    latest = names[1:][::-1]
    assert memories(tmp_path) == {"a", *(latest[: keep - 1] if keep else latest)}
    assert (tmp_path / "not a run").is_dir()


def test_a_run_whose_memory_was_removed_is_not_continued_silently(settings, tmp_path, monkeypatch):
    """The nodes have their memory on other machines than the server."""
    own = {**settings, "strategy": "local", "models": "mlp"}

    def run(name, keep_runs, **changes):
        configuration = read_config({**own, "output-dir": str(tmp_path / name), **changes})
        node = {"keep-runs": keep_runs, "state-dir": str(tmp_path / "state")}
        nodes = dict.fromkeys(range(4), node)
        return serve(InProcessGrid(client_app, 4, configuration.flat(), nodes), configuration)

    full_in_line(monkeypatch, "rounds.jsonl")
    with pytest.raises(RunDirectoryError):
        run("cut", 2)
    monkeypatch.undo()
    run("b", 2)
    assert len(memories(tmp_path / "state" / "0")) == 2
    run("c", 2)
    assert len(memories(tmp_path / "state" / "0")) == 2
    with pytest.raises(
        TooFewRepliesError, match=r"this node has removed its memory of run .*\(keep-runs\)"
    ):
        run("cut", 2, resume=True)
    # Whoever removes the mark wants the node to start over.
    for mark in (tmp_path / "state").rglob("forgotten"):
        mark.unlink()
    assert run("cut", 2, resume=True).finished


# ---- A long run ------------------------------------------------------------------------


def scripted_client(num_clients, drop, generator):
    """Answer at once with random predictions; a share of the messages comes to nothing."""

    def serve_message(message, context):
        n = context.node_config["partition-id"]
        kind = message.metadata.message_type
        if kind == "train" and generator.random() < drop:
            raise RuntimeError("lost")
        arrays = ArrayRecord()
        if kind == "train":
            predictions = generator.dirichlet(np.ones(10), size=100).astype(np.float32)
            arrays = ArrayRecord({"predictions": Array(predictions)})
        counts = {"correct": 90 - n, "total": 100, "loss": 0.5}
        sizes = {"num-examples": 100, "test-size": 100, "validation-size": 0}
        numbers = sizes if message.metadata.message_type == "query" else counts
        info = ConfigRecord({"partition-id": n, "model": "mlp", "public-hash": "a" * 64})
        content = {"arrays": arrays, "metrics": MetricRecord(numbers), "info": info}
        return Message(RecordDict(content), reply_to=message)

    return serve_message


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["kt-pfl", "perfed-ckt"])
def test_two_hundred_rounds_of_fifty_clients_with_every_fifth_reply_lost(strategy, small, tmp_path):
    settings = {**small, "strategy": strategy, "num-clients": 50, "num-server-rounds": 200}
    settings |= {"held-out-size": 100, "public-size": 100, "output-dir": str(tmp_path / "run")}
    configuration = read_config(settings)
    app = scripted_client(50, 0.2, np.random.default_rng(0))
    grid = InProcessGrid(app, 50, configuration.flat())
    memories = []
    with flower_log_level(logging.CRITICAL):
        measured = RowObserver(lambda row: memories.append(memory("VmRSS")))
        run = serve(grid, configuration, measured)
    assert list(run.rounds["round"]) == list(range(1, 201))
    share = run.rounds["failures"].sum() / (50 * 200)
    assert 0.18 < share < 0.22
    assert (run.rounds["replies"] + run.rounds["failures"] == 50).all()
    lines = Counter(zip(run.clients["round"], run.clients["partition_id"], strict=True))
    assert len(lines) == 50 * 200 and set(lines.values()) == {1}
    warm, end = max(memories[40:60]), max(memories[-20:])
    print(
        f"{strategy}: {run.summary['seconds']:.0f} s, {warm:.0f} MB warm, {end:.0f} MB at the end"
    )
    assert end - warm < 30, memories[::10]
