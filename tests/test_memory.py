"""Memories of clients: in a process, in Flower's context, and on disk."""

import pytest
import torch
from flwr.app import Context, Message, MessageType, RecordDict
from safetensors.torch import save_file

import fedkd_flwr
from fedkd_flwr.config import read_config
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.memory import (
    DamagedMemoryError,
    Memory,
    MemoryFolder,
    own_context,
    require_readable,
)
from fedkd_flwr.memory.folder import read_memory
from fedkd_flwr.runs import DamagedRunError


@pytest.fixture
def kept():
    memory = Memory()
    memory.save("model", {"w": torch.full((3, 5), 1.0), "n": torch.tensor(7)})
    memory.save_numbers("choice", {"lambda": 0.5, "loss": float("inf")})
    return memory


def assert_same(one, other):
    assert one.numbers == other.numbers
    assert one.tensors.keys() == other.tensors.keys()
    for group, tensors in one.tensors.items():
        assert tensors.keys() == other.tensors[group].keys()
        for name, tensor in tensors.items():
            torch.testing.assert_close(other.tensors[group][name], tensor, rtol=0, atol=0)


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


def test_a_context_gives_back_what_was_stored(kept):
    context = Context(1, 1, {}, RecordDict(), {})
    own_context(context).keep(kept)
    assert_same(own_context(context).memory, kept)


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


def test_a_memory_of_any_round_belongs_to_its_run():
    memory = Memory()
    memory.save("spent", {"spent": torch.zeros(1)})  # of a round that is repeated
    assert memory.belongs_to({"0": 1.0})
    memory.note_round(0, {"0": 1.0})
    assert memory.belongs_to({"0": 1.0}) and not memory.belongs_to({"0": 2.0})


def test_the_last_two_rounds_of_a_client_are_kept(tmp_path):
    folder, rounds = MemoryFolder(tmp_path / "run"), [1, 4, 5, 9, 12]
    for server_round in rounds:
        folder.write(learned(server_round, server_round))
    for server_round in rounds[-2:]:
        found = folder.read(before_round=server_round + 1)
        assert found.load_numbers("numbers") == {"number": server_round}
    assert len(list(folder.path.iterdir())) == 2


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


# ---- In runs -------------------------------------------------------------------------


@pytest.fixture
def one_of_four(small):
    """One of four clients takes part in each round."""
    changes = {"num-server-rounds": 6, "fraction-train": 0.25, "evaluate-every": 6}
    return {**small, **changes, "strategy": "local", "models": "mlp"}


def test_only_clients_that_have_trained_are_written(one_of_four, tmp_path):
    run = fedkd_flwr.run(one_of_four, output_dir=tmp_path / "run")
    folders = MemoryFolder.of_run(run.path / "checkpoint" / "clients", run.run_id)
    trained = run.clients[run.clients["train_loss"].notna()].groupby("partition_id")["round"].max()
    assert {int(f.path.parent.name): f.newest() for f in folders} == {
        n: MemoryFolder(folders[0].path.parents[1] / str(n) / run.run_id).file(last)
        for n, last in trained.items()
    }
    # A finished run keeps what it needs to go on.
    assert len(list((run.path / "checkpoint" / "clients").rglob("round-*"))) == len(trained)


def test_a_run_does_not_continue_with_a_damaged_memory_of_an_earlier_round(one_of_four, tmp_path):
    run = fedkd_flwr.run(one_of_four, output_dir=tmp_path / "run")
    older, *_, newest = sorted(
        (run.path / "checkpoint" / "clients").rglob("round-*"), key=lambda file: file.name
    )
    assert newest.name == "round-000006.safetensors"
    older.write_bytes(b"")
    with pytest.raises(DamagedRunError) as refused:
        fedkd_flwr.resume(run.path, num_server_rounds=7)
    assert str(refused.value).startswith(f"{older} is damaged (")


def test_a_run_moves_from_one_engine_to_another(small, tmp_path):
    """Each client's file is the same, whichever engine wrote it."""
    from fedkd_flwr.client_app import app
    from fedkd_flwr.engines.starting import resumed
    from fedkd_flwr.server_app import serve

    settings = {**small, "strategy": "kt-pfl", "models": "mlp"}
    whole = fedkd_flwr.run({**settings, "num-server-rounds": 3}, output_dir=tmp_path / "whole")
    cut = fedkd_flwr.run({**settings, "num-server-rounds": 2}, output_dir=tmp_path / "cut")
    configuration = resumed(cut.path, {"num-server-rounds": 3})
    finished = serve(InProcessGrid(app, 4, configuration.flat()), configuration)
    assert list(finished.clients["loss"]) == list(whole.clients["loss"])
