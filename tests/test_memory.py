"""Memories of clients: in a process, in Flower's context, and on disk."""

import contextlib
import errno
import os

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, MessageType, RecordDict
from helpers import client_of, file_size_limit, run_with
from safetensors.numpy import load_file
from safetensors.torch import save_file

import fedkd_flwr
from fedkd_flwr import files
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.clients.messages import Request
from fedkd_flwr.config import read_config
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.files import write_arrays
from fedkd_flwr.memory import (
    DamagedMemoryError,
    Memory,
    MemoryFolder,
    SharedFolder,
    forget_old_runs,
    own_context,
)
from fedkd_flwr.memory.folder import read_memory, require_readable
from fedkd_flwr.runs import RunDirectory, RunDirectoryError
from fedkd_flwr.server_app import serve
from fedkd_flwr.training.loop import build_optimizer
from strategies.core.replies import TooFewRepliesError


@pytest.fixture
def kept():
    memory = Memory()
    memory.save("model", {"w": torch.full((3, 5), 1.0), "n": torch.tensor(7)})
    memory.save_numbers("choice", {"lambda": 0.5, "loss": float("inf")})
    return memory


def assert_same(one, other):
    assert one.numbers == other.numbers
    torch.testing.assert_close(one.tensors, other.tensors, rtol=0, atol=0)


def test_a_stored_tensor_is_a_contiguous_copy(kept):
    stack = torch.randn(4, 3, 2, requires_grad=True)
    kept.save("row", {"w": stack[1].T})
    stored = kept.load("row")["w"]
    assert torch.equal(stored, stack[1].T)
    assert stored.is_contiguous() and not stored.requires_grad
    assert stored.untyped_storage().nbytes() == stored.nbytes


def test_a_draft_does_not_change_the_memory_it_was_made_from(kept):
    draft = kept.draft()
    draft.save("model", {"w": torch.full((3, 5), 2.0)})
    draft.save("more", {"w": torch.full((3, 5), 3.0)})
    draft.note_round(4, {})
    assert kept.load("model")["w"].eq(1).all()
    assert kept.load("more") is None
    assert kept.server_round == 0 and draft.server_round == 4
    assert draft.load("model")["w"].eq(2).all()


def test_two_messages_to_a_client_build_on_each_other():
    """Handled at once, the second would overwrite the result of the first."""

    def serve(message, context):
        kept = context.memory.load("model")
        count = kept["w"] if kept else torch.zeros(3)
        context.memory.save("model", {"w": count + 1})
        return Message(RecordDict(), reply_to=message)

    def together(messages, contexts, tell):
        return [serve(*pair) for pair in zip(messages, contexts, strict=True)]

    grid = InProcessGrid(serve, 2, read_config({}), together=together)
    first, second = grid.get_node_ids()
    for nodes in ((first, second), (first, first), (second, second, first)):
        grid.send_and_receive([Message(RecordDict(), n, MessageType.TRAIN) for n in nodes])
    kept = [context.memory.load("model")["w"].tolist() for context in grid.contexts.values()]
    assert kept == [[4.0] * 3, [3.0] * 3]


# ---- In Flower's context -------------------------------------------------------------


def test_a_context_loses_what_was_forgotten_and_keeps_what_did_not_change(kept):
    context = Context(1, 1, {}, RecordDict(), {})
    own_context(context).keep(kept)
    later, unchanged = own_context(context).memory, context.state["model"]
    later.save("control", {"c": torch.zeros(2)})
    del later.numbers["choice"]
    own_context(context).keep(later)
    assert context.state["model"] is unchanged
    assert set(context.state) == {"model", "control"}
    later.replace(Memory())
    own_context(context).keep(later)
    assert not context.state


# ---- On disk -------------------------------------------------------------------------


def learned(number, server_round):
    memory = Memory()
    memory.save("model", {"weight": torch.full((30,), float(number))})
    memory.save_numbers("numbers", {"number": number})
    memory.note_round(server_round, {})
    return memory


def test_a_folder_gives_back_what_was_written(kept, tmp_path):
    folder = MemoryFolder(tmp_path / "7" / "ab12")
    kept.note_round(3, {"0": 2.0**48 - 1})
    folder.write(kept)
    assert_same(folder.read(before_round=4), kept)
    assert folder.read(before_round=3) is None


def test_a_repeated_round_replaces_its_file_and_later_ones(tmp_path):
    folder = MemoryFolder(tmp_path / "run")
    for server_round in (3, 4, 5):
        folder.write(learned(server_round, server_round))
    folder.write(learned(40, 4))
    assert folder.read(before_round=9).load_numbers("numbers") == {"number": 40}
    assert folder.newest() == folder.file(4)


def test_a_file_that_is_not_a_memory_is_reported_as_damaged(tmp_path):
    file = tmp_path / "round-000001.safetensors"
    save_file({"model/weight": torch.zeros(3)}, file)
    with pytest.raises(DamagedMemoryError) as refused:
        read_memory(file)
    assert str(refused.value).startswith(f"{file} is damaged (it lacks 'numbers')")
    file.write_bytes(file.read_bytes()[:50])
    for read in (read_memory, require_readable):
        with pytest.raises(DamagedMemoryError, match="is damaged"):
            read(file)


def test_a_shared_file_gives_back_what_was_written(kept, tmp_path):
    folder, other = SharedFolder.of_run(tmp_path, "ab12"), learned(7, 3)
    kept.note_round(3, {"0": 2.0**48 - 1})
    kept.save("odd", {"half": torch.ones(3, dtype=torch.float16), "empty": torch.zeros(0, 2)})
    folder.write({1: kept, 20: other, 3: learned(5, 2), 4: Memory()}, 3)
    assert_same(read_memory(folder.file(3), "1"), kept)
    assert_same(MemoryFolder(tmp_path / "20" / "ab12").read(before_round=4), other)
    assert MemoryFolder(tmp_path / "2" / "ab12").read(before_round=4) is None
    assert folder.rounds(folder.newest()) == {"1": 3, "20": 3}


def test_shared_files_stay_while_a_kept_round_names_them(tmp_path):
    folder = SharedFolder.of_run(tmp_path, "ab12")
    for server_round in (1, 2, 3, 4):
        memories = {0: learned(1, 1), server_round: learned(2, server_round)}
        folder.write(memories, server_round)
    folder.write({3: learned(3, 5)}, 5)
    assert folder.files() == [folder.file(kept) for kept in (1, 2, 3, 4, 5)]
    folder.write({n: learned(4, 6) for n in (0, 1, 2, 3)}, 6)
    folder.write({2: learned(5, 7)}, 7)
    assert folder.files() == [folder.file(kept) for kept in (4, 6, 7)]
    folder.keep_newest()
    assert folder.files() == [folder.file(kept) for kept in (4, 6, 7)]
    folder.require_readable(8)
    folder.file(4).write_bytes(b"")
    with pytest.raises(DamagedMemoryError, match="is damaged"):
        folder.require_readable(8)
    folder.write({n: learned(6, 3) for n in range(5)}, 3)
    assert folder.newest() == folder.file(3)


def test_of_two_memories_of_a_round_the_one_after_more_starts_counts(tmp_path):
    """One engine has served the round, then another one repeated it."""
    own, shared = MemoryFolder(tmp_path / "2" / "ab"), SharedFolder.of_run(tmp_path, "ab")
    for start in (1, 2, 3):
        memory = learned(start, 4)
        memory.note_round(4, {}, start)
        if start == 2:
            own.write(memory)
        else:
            shared.write({2: memory}, 4)
        assert own.read(5).load_numbers("numbers") == {"number": start}
    assert own.last_round(5) == 4 and own.numbers()["numbers"] == {"number": 3}


@pytest.mark.parametrize("strategy", ["fedavg", "feddyn"])
def test_a_client_without_state_writes_no_file(strategy, small, tmp_path):
    settings = {**small, "strategy": strategy, "models": "mlp", "momentum": 0.9}
    whole = fedkd_flwr.run({**settings, "num-server-rounds": 3}, output_dir=tmp_path / "whole")
    cut = fedkd_flwr.run({**settings, "num-server-rounds": 2}, output_dir=tmp_path / "cut")
    assert len(shared_folder(cut).files()) == (1 if strategy == "feddyn" else 0)
    resumed = fedkd_flwr.resume(cut.path, num_server_rounds=3)
    assert list(resumed.clients["loss"].dropna()) == list(whole.clients["loss"].dropna())


# ---- In runs -------------------------------------------------------------------------


def shared_folder(run):
    return SharedFolder.of_run(run.path / "checkpoint" / "clients", run.run_id)


def test_clients_of_a_process_share_a_file_for_each_round_in_which_they_trained(small, tmp_path):
    small |= {"num-server-rounds": 6, "fraction-train": 0.25, "evaluate-every": 6}
    small |= {"strategy": "local", "models": "mlp"}
    run = fedkd_flwr.run(small, output_dir=tmp_path / "run")
    folder = shared_folder(run)
    trained = run.clients[run.clients["train_loss"].notna()].groupby("partition_id")["round"].max()
    assert folder.rounds(folder.newest()) == {str(n): last for n, last in trained.items()}
    # A finished run keeps what it needs to go on.
    assert folder.files() == [folder.file(last) for last in sorted(set(trained))]
    assert list((run.path / "checkpoint" / "clients").iterdir()) == [folder.path.parent]
    for client, last in trained.items():
        memory = MemoryFolder(folder.path.parents[1] / str(client) / run.run_id).read(7)
        assert memory.server_round == last and memory.load("model")


def test_a_run_moves_from_one_engine_to_another_and_back(small, tmp_path):
    """Clients read a shared file as well as their own, whichever engine wrote it."""
    from fedkd_flwr.client_app import app
    from fedkd_flwr.engines.starting import resumed

    settings = {**small, "strategy": "kt-pfl", "models": "mlp"}
    whole = fedkd_flwr.run({**settings, "num-server-rounds": 4}, output_dir=tmp_path / "whole")
    cut = fedkd_flwr.run({**settings, "num-server-rounds": 2}, output_dir=tmp_path / "cut")
    configuration = resumed(cut.path, {"num-server-rounds": 3})
    serve(InProcessGrid(app, 4, configuration.flat()), configuration)
    finished = fedkd_flwr.resume(cut.path, num_server_rounds=4)
    assert list(finished.clients["loss"]) == list(whole.clients["loss"])


# ---- On a node ------------------------------------------------------------------------


def run_as_nodes(settings, path):
    """Run with clients that write their memories themselves, each to its own folder."""
    folder = {"state-dir": str(path / "checkpoint" / "clients")}
    return run_with(client_app, settings, path, **folder)[0]


def test_a_nodes_full_disk_drops_that_node_with_its_reason(small, tmp_path, monkeypatch):
    save = files.save_file

    def refuse(arrays, path, metadata):
        is_full = "/2/" in str(path) and "round-000002" in path.name
        with file_size_limit(100) if is_full else contextlib.nullcontext():
            return save(arrays, path, metadata)

    monkeypatch.setattr(files, "save_file", refuse)
    run = run_as_nodes(small, tmp_path / "run")
    assert list(run.rounds["replies"]) == [4, 3]
    failure = run.clients[run.clients["failure"].notna()].iloc[0]
    assert (failure["round"], failure["partition_id"]) == (2, 2)
    assert "File too large" in failure["failure"]


def test_a_nodes_memory_of_another_run_is_not_used(small, tmp_path):
    """A node keeps its state-dir for years; run B must not find run A's model there."""
    own = {"strategy": "local", "models": "mlp", "fraction-train": 0.5}
    runs = {}
    for folder in ("used", "fresh"):
        state_dir = {"state-dir": str(tmp_path / folder)}
        if folder == "used":
            fedkd_flwr.run({**small, **own, **state_dir, "seed": 1}, output_dir=tmp_path / "a")
        runs[folder] = fedkd_flwr.run(
            {**small, **own, **state_dir, "seed": 2}, output_dir=tmp_path / f"b-{folder}"
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


def test_a_run_whose_memory_was_removed_is_not_continued_silently(small, tmp_path, monkeypatch):
    """The nodes have their memory on other machines than the server."""
    own = {**small, "strategy": "local", "models": "mlp"}

    def run(name, keep_runs, **changes):
        node = {"keep-runs": keep_runs, "state-dir": str(tmp_path / "state")}
        nodes = dict.fromkeys(range(4), node)
        return run_with(client_app, own, tmp_path / name, node_configs=nodes, **changes)[0]

    append = RunDirectory._append

    def full(directory, name, rows):
        if (name, rows[0]["round"]) == ("rounds.jsonl", 2):
            raise OSError(errno.ENOSPC, "No space left on device")
        append(directory, name, rows)

    monkeypatch.setattr(RunDirectory, "_append", full)
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


def test_a_file_of_arrays_gives_back_what_lies_in_another_order(tmp_path):
    image = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    arrays = {
        "plain": image,
        "transposed": image[0, 0].T,
        "channels last": np.ascontiguousarray(image.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
        "every second": image[..., ::2],
        "a number": np.array(3.0),
    }
    write_arrays(tmp_path / "file.safetensors", arrays)
    found = load_file(tmp_path / "file.safetensors")
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_an_optimizers_whole_state_lives_on(name, small):
    memory = Memory()
    client = client_of(small, strategy="local", models="mlp")
    model = client.session.new_model()
    first = build_optimizer(name, model.parameters(), 0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    first.step()
    names = {own: f"model/{name}" for name, own in model.named_parameters()}
    memory.save_momentum(first, names)
    second = build_optimizer(name, model.parameters(), 0.1, momentum=0.9)
    memory.load_momentum(second, names)
    before, after = (optimizer.state_dict()["state"] for optimizer in (first, second))
    assert before
    torch.testing.assert_close(before, after, rtol=0, atol=0)


def test_a_node_repeats_a_round_from_its_memory_of_the_round_before(small, tmp_path):
    flat = {**small, "strategy": "local", "models": "mlp", "state-dir": str(tmp_path)}
    context = client_of(flat).session.context

    def loss_of(server_round):
        request = Request(server_round=server_round, run_id="a1", starts=(0,))
        return client_of(flat, context=context).session.serve(request).metrics["train-loss"]

    first, second, again = map(loss_of, (1, 2, 2))
    assert first != second == again


@pytest.mark.parametrize("strategy", ["local", "fedrep", "ditto"])
def test_a_run_continues_from_momenta_by_place(strategy, small, tmp_path):
    """Earlier versions wrote a file for each client, with a parameter's place as its name."""
    settings = {**small, "strategy": strategy, "models": "mlp", "momentum": 0.9}
    whole = fedkd_flwr.run({**settings, "num-server-rounds": 3}, output_dir=tmp_path / "whole")
    run = fedkd_flwr.run({**settings, "num-server-rounds": 1}, output_dir=tmp_path / "run")
    model = client_of(settings).model
    folder, group = shared_folder(run), "head-optimizer" if strategy == "fedrep" else "optimizer"
    for client in range(4):
        memory = read_memory(folder.file(1), str(client))
        momenta = memory.tensors.pop("optimizer")
        stored = [f"model/{name}/momentum_buffer" for name, _ in model.named_parameters()]
        in_order = [momenta[name] for name in stored if name in momenta]
        memory.tensors[group] = {f"{n}/momentum_buffer": own for n, own in enumerate(in_order)}
        MemoryFolder(folder.path.parents[1] / str(client) / run.run_id).write(memory)
    folder.file(1).unlink()
    resumed = fedkd_flwr.resume(run.path, num_server_rounds=3)
    assert list(resumed.clients["loss"].dropna()) == list(whole.clients["loss"].dropna())
    kept = read_memory(shared_folder(resumed).file(3), "0")
    assert "head-optimizer" not in kept.tensors
    assert all(name.startswith("model/") for name in kept.tensors["optimizer"])
