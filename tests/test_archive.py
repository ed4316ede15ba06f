"""The archive of client memories: changes are written, and all memories are found."""

import json
import random

import pytest
import torch
from flwr.app import Context, RecordDict
from safetensors import safe_open
from safetensors.torch import save_file

import fedkd_flwr
from fedkd_flwr.clients import archive as archive_module
from fedkd_flwr.clients import memory, state_dir
from fedkd_flwr.clients.archive import Archive
from fedkd_flwr.clients.memory_files import (
    DamagedMemoryError,
    places_in,
    read_memories,
    round_of,
    write_memories,
)
from fedkd_flwr.runs import DamagedRunError

CLIENTS = 20


def no_memories(clients=CLIENTS):
    return {n: Context(1, n, {"partition-id": n}, RecordDict(), {}) for n in range(clients)}


def learn(context, number, server_round):
    """Store a number for a round in a client's memory."""
    memory.save_tensors(context, "model", {"weight": torch.full((300,), float(number))})
    memory.save_numbers(context, "numbers", {"number": number})
    state_dir.note_round(context, server_round)


def remembered(contexts):
    """Return each client's number, after checking that all records agree."""
    found = {}
    for n, context in contexts.items():
        if tensors := memory.load_tensors(context, "model"):
            found[n] = tensors["weight"][0].item()
            assert memory.load_numbers(context, "numbers") == {"number": found[n]}
    return found


def clients_in(file):
    with safe_open(file, framework="numpy") as stored:
        return len(json.loads(stored.metadata()["metrics"]))


def taken_up(folder, before_round, clients=CLIENTS):
    contexts = no_memories(clients)
    Archive(folder).take_up(contexts, before_round)
    return remembered(contexts)


def test_a_round_writes_what_has_changed(tmp_path):
    contexts, archive = no_memories(), Archive(tmp_path / "run")
    for n in contexts:
        learn(contexts[n], n, server_round=1)
    archive.save(contexts, 1)
    learn(contexts[7], 70, server_round=2)
    archive.save(contexts, 2)
    first, second = (tmp_path / "run" / f"round-00000{n}.safetensors" for n in (1, 2))
    assert second.stat().st_size < first.stat().st_size / 10
    assert taken_up(tmp_path / "run", 3) == {**{n: n for n in contexts}, 7: 70}
    assert taken_up(tmp_path / "run", 2) == {n: n for n in contexts}


@pytest.mark.parametrize("sampled", [1, 3, CLIENTS])
def test_the_last_two_rounds_are_found_after_any_round(sampled, tmp_path):
    draw, contexts, archive = random.Random(0), no_memories(), Archive(tmp_path / "run")
    before = {}
    for server_round in range(1, 61):
        for n in draw.sample(range(CLIENTS), sampled):
            learn(contexts[n], server_round * 100 + n, server_round)
        archive.save(contexts, server_round)
        now = remembered(contexts)
        assert taken_up(tmp_path / "run", server_round + 1) == now
        assert taken_up(tmp_path / "run", server_round) == before
        before = now
        if server_round % 7 == 0:  # the process ends, and another goes on
            contexts, archive = no_memories(), Archive(tmp_path / "run")
            archive.take_up(contexts, server_round + 1)
        assert sum(map(clients_in, (tmp_path / "run").iterdir())) <= 3 * len(now)


def test_a_repeated_round_replaces_its_files(tmp_path):
    contexts, archive = no_memories(3), Archive(tmp_path / "run")
    for n in contexts:
        learn(contexts[n], n, server_round=1)
    archive.save(contexts, 1)
    learn(contexts[0], 50, server_round=2)
    archive.save(contexts, 2)
    again, archive = no_memories(3), Archive(tmp_path / "run")
    archive.take_up(again, before_round=2)
    learn(again[1], 60, server_round=2)
    archive.save(again, 2)
    assert taken_up(tmp_path / "run", 3, clients=3) == {0: 0, 1: 60, 2: 2}


def test_a_newer_memory_of_the_client_itself_is_preferred(tmp_path):
    contexts, archive = no_memories(3), Archive(tmp_path / "run")
    for n in contexts:
        learn(contexts[n], n, server_round=1)
    archive.save(contexts, 1)
    alone = no_memories(3)[2]
    learn(alone, 22, server_round=2)
    state_dir.save_context(alone, tmp_path / "2" / "run")
    assert taken_up(tmp_path / "run", 2, clients=3) == {0: 0, 1: 1, 2: 2}
    contexts, archive = no_memories(3), Archive(tmp_path / "run")
    archive.take_up(contexts, before_round=3)
    learn(contexts[0], 30, server_round=3)
    archive.save(contexts, 3)
    assert taken_up(tmp_path / "run", 4, clients=3) == {0: 30, 1: 1, 2: 22}
    # A node of its own finds its part as well.
    for n, number in ((0, 30), (1, 1), (2, 22)):
        context = no_memories(3)[n]
        assert state_dir.load_context(context, tmp_path / str(n) / "run", before_round=4)
        assert remembered({n: context}) == {n: number}


def test_a_file_of_all_clients_without_places_is_read(tmp_path):
    contexts = no_memories(3)
    learn(contexts[0], 5, server_round=4)
    file = tmp_path / "run" / "round-000004.safetensors"
    write_memories(file, {f"{n}/": context for n, context in contexts.items()})
    assert taken_up(tmp_path / "run", 5, clients=3) == {0: 5}


# ---- In runs -------------------------------------------------------------------------


@pytest.fixture
def one_of_four(small):
    """One of four clients takes part in each round."""
    changes = {"num-server-rounds": 6, "fraction-train": 0.25, "evaluate-every": 6}
    return {**small, **changes, "strategy": "local", "models": "mlp"}


def test_all_memories_of_one_file_are_read_at_once(small, tmp_path, monkeypatch):
    settings = {**small, "num-server-rounds": 2, "strategy": "local", "models": "mlp"}
    fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    read = []

    def read_and_note(file, contexts):
        read.append((file.name, len(contexts)))
        read_memories(file, contexts)

    monkeypatch.setattr(archive_module, "read_memories", read_and_note)
    fedkd_flwr.resume(tmp_path / "run", num_server_rounds=3)
    assert read == [("round-000002.safetensors", 4)]


def test_a_run_does_not_continue_without_an_older_file_that_it_needs(one_of_four, tmp_path):
    run = fedkd_flwr.run(one_of_four, output_dir=tmp_path / "run")
    older, *_, newest = sorted((run.path / "checkpoint" / "clients").rglob("round-*"))
    assert newest.name == "round-000006.safetensors"
    older.unlink()
    with pytest.raises(DamagedRunError) as refused:
        fedkd_flwr.resume(run.path, num_server_rounds=7)
    assert str(refused.value).startswith(f"{older} is damaged (")


def test_a_finished_run_keeps_the_files_that_are_needed(one_of_four, tmp_path):
    run = fedkd_flwr.run(one_of_four, output_dir=tmp_path / "run")
    files = {round_of(f): f for f in (run.path / "checkpoint" / "clients").rglob("round-*")}
    places = places_in(files[6])
    trained = run.clients[run.clients["train_loss"].notna()]
    assert set(places) == set(trained["partition_id"])
    assert set(files) == set(places.values()) != {6}


def test_files_that_only_older_rounds_need_are_removed_before_a_round_is_written(
    tmp_path, monkeypatch
):
    contexts, archive = no_memories(), Archive(tmp_path / "run")
    held = []

    def write_and_note(file, *arguments, **named):
        held.append({round_of(f) for f in file.parent.glob("round-*")})
        write_memories(file, *arguments, **named)

    monkeypatch.setattr(archive_module, "write_memories", write_and_note)
    for server_round in (1, 2, 3):
        for n in contexts:
            learn(contexts[n], n, server_round)
        archive.save(contexts, server_round)
    assert held == [set(), {1}, {2}]


def test_a_file_that_is_not_a_memory_is_reported_as_damaged(tmp_path):
    file = tmp_path / "round-000001.safetensors"
    save_file({"0/model/weight": torch.zeros(3)}, file)
    for read in (places_in, lambda file: read_memories(file, {"0/": no_memories()[0]})):
        with pytest.raises(DamagedMemoryError) as refused:
            read(file)
        assert str(refused.value).startswith(f"{file} is damaged (it lacks 'metrics')")


def test_only_clients_with_a_memory_are_found_in_an_old_archive(tmp_path):
    contexts = no_memories(3)
    learn(contexts[1], 5, server_round=1)
    file = tmp_path / "round-000001.safetensors"
    write_memories(file, {f"{n}/": context for n, context in contexts.items()})
    assert places_in(file) == {1: 1}
