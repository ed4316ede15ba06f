"""Messages that a node serves at the same time: of one run one after another, of others beside.

Flower gives a node every waiting message at once, each in a process of its own. Threads stand in
for these processes here, since locks of files hold between them too.
"""

import copy
import threading

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from helpers import client_of

from fedkd_flwr import files
from fedkd_flwr.clients import remembered
from fedkd_flwr.clients.messages import Request
from fedkd_flwr.config import read_config
from fedkd_flwr.memory import Memory, MemoryFolder, forget_old_runs, locked

RUN = "0f"


class Node:
    def __init__(self, small, folder, **changes):
        flat = read_config({**small, "strategy": "local", "models": "mlp", **changes}).flat()
        self.small, self.config = small, flat
        self.node_config = {"partition-id": 0, "state-dir": str(folder), "trust-server": True}
        self.folder = MemoryFolder(folder / "0" / RUN)

    def context(self, state=None):
        return Context(
            1, 1, dict(self.node_config), copy.deepcopy(state) or RecordDict(), self.config
        )

    def serve(self, server_round, context):
        client = client_of(self.small, context=context)
        return client.session.serve(Request(server_round=server_round, run_id=RUN))

    def rounds(self):
        return [int(file.stem[-6:]) for file in self.folder.files()]


def weights(state):
    return [array.numpy() for array in state["model"].values()]


def in_thread(target, *arguments):
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def arrived(monkeypatch):
    """Counts messages that are about to hold a memory."""
    counted = threading.Semaphore(0)

    def counting(folder):
        counted.release()
        return locked(folder)

    monkeypatch.setattr(remembered, "locked", counting)
    return counted


def wait_for(counted):
    assert counted.acquire(timeout=60)


def test_a_lock_keeps_others_out(tmp_path):
    with locked(tmp_path / "new" / "folder") as first:
        with locked(tmp_path / "new" / "folder", wait=False) as second:
            assert first and not second
        with locked(tmp_path, wait=False) as other:
            assert other
    with locked(tmp_path / "new" / "folder", wait=False) as later:
        assert later


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_message_goes_on_from_the_one_before_it(noise, small, tmp_path, monkeypatch, arrived):
    """The server no longer waits for round 2, and asks for round 3 while the node trains."""
    private = {"dp-sgd-noise-multiplier": noise, "dp-sgd-noise-seed": 1, "strategy": "fedmd"}
    changes = private if noise else {}
    node, alone = (Node(small, tmp_path / name, **changes) for name in ("node", "alone"))
    start, steady = node.context(), alone.context()
    node.serve(1, start)
    for server_round in (1, 2, 3):
        expected = alone.serve(server_round, steady)
    for _ in range(4):
        wait_for(arrived)
    slow, next_one = node.context(start.state), node.context(start.state)
    note, has_trained = remembered.Remembered.note_round, threading.Event()
    # Without it, the thread may take its own arrival for that of round 3.
    is_counted = threading.Event()

    def note_late(memory, request):
        if request.server_round == 2:
            has_trained.set()
            assert is_counted.wait(timeout=60)
            wait_for(arrived)  # the message of round 3
        note(memory, request)

    monkeypatch.setattr(remembered.Remembered, "note_round", note_late)
    second = in_thread(node.serve, 2, slow)
    wait_for(arrived)
    is_counted.set()
    assert has_trained.wait(timeout=60)
    reply = node.serve(3, next_one)
    second.join()
    np.testing.assert_equal(weights(next_one.state), weights(steady.state))
    assert reply.metrics == expected.metrics
    assert node.rounds() == [2, 3]


def test_a_message_that_comes_second_leaves_the_memory_of_a_later_round(small, tmp_path, arrived):
    """After a pause a node gets both at once, and the later one may hold the memory first."""
    node = Node(small, tmp_path)
    start = node.context()
    node.serve(1, start)
    wait_for(arrived)
    with locked(node.folder.path):
        earlier = in_thread(node.serve, 2, node.context())
        wait_for(arrived)
        later = Memory()
        later.note_round(3, node.folder.read(3).load_numbers("owner"))
        node.folder.write(later)
    earlier.join()
    assert node.rounds() == [1, 2, 3]
    # Nor does one that begins later, with a context from before.
    node.serve(2, node.context(start.state))
    assert node.rounds() == [1, 2, 3]
    # A run that is continued from an earlier round replaces what came after it.
    node.serve(2, node.context())
    assert node.rounds() == [1, 2]


def test_a_run_that_is_served_is_not_evicted(tmp_path):
    kept, other, current = (MemoryFolder(tmp_path / name) for name in ("aa", "bb", "cc"))
    for folder in (kept, other, current):
        learned(folder, 1)
    with locked(kept.path):
        forget_old_runs(current, 1)
    assert kept.newest() and current.newest()
    assert not other.files()
    forget_old_runs(current, 1)
    assert not kept.files()


def test_a_node_moves_a_memory_into_place_when_it_is_on_the_disk(small, tmp_path, monkeypatch):
    """Otherwise a power cut could leave an empty file, after the memory before it was removed."""
    node, synced = Node(small, tmp_path), []
    monkeypatch.setattr(files, "sync", lambda path: synced.append(path.name))
    node.serve(1, node.context())
    assert ".round-000001.safetensors.tmp" in synced


def learned(folder, server_round):
    memory = Memory()
    memory.save("model", {"weight": torch.zeros(10)})
    memory.note_round(server_round, {})
    folder.write(memory)
