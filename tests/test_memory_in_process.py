"""Memories of clients in one process: tensors that messages replace, one after another."""

import pytest
import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedkd_flwr.clients.memory import LiveContext, load_tensors, save_tensors
from fedkd_flwr.grids.in_process import InProcessGrid


@pytest.fixture
def kept():
    context = LiveContext(1, 1, {}, RecordDict(), {})
    save_tensors(context, "model", {"w": torch.full((3, 5), 1.0), "n": torch.tensor(7)})
    return context


def test_a_stored_tensor_is_a_contiguous_copy(kept):
    stack = torch.randn(4, 3, 2, requires_grad=True)
    save_tensors(kept, "row", {"w": stack[1].T})
    stored = load_tensors(kept, "row")["w"]
    assert torch.equal(stored, stack[1].T)
    assert stored.is_contiguous() and not stored.requires_grad
    assert stored.untyped_storage().nbytes() == stored.nbytes


def test_a_draft_changes_no_memory_of_the_context_it_was_made_from(kept):
    draft = kept.draft()
    save_tensors(draft, "model", {"w": torch.full((3, 5), 2.0)})
    save_tensors(draft, "more", {"w": torch.full((3, 5), 3.0)})
    assert load_tensors(kept, "model")["w"].eq(1).all()
    assert load_tensors(kept, "more") is None
    assert load_tensors(draft, "model")["w"].eq(2).all()


def test_two_messages_to_a_client_build_on_each_other():
    """Handled at once, the second would overwrite the result of the first."""

    def serve(message, context):
        kept = load_tensors(context, "model")
        count = kept["w"] if kept else torch.zeros(3)
        save_tensors(context, "model", {"w": count + 1})
        return Message(RecordDict(), reply_to=message)

    def together(messages, contexts, tell):
        return [serve(*pair) for pair in zip(messages, contexts, strict=True)]

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    grid = InProcessGrid(serve, 2, {}, live=True, together=together)
    first, second = grid.get_node_ids()
    for nodes in ((first, second), (first, first), (second, second, first)):
        grid.send_and_receive([Message(RecordDict(), n, MessageType.TRAIN) for n in nodes])
    kept = [load_tensors(context, "model")["w"].tolist() for context in grid.contexts.values()]
    assert kept == [[4.0] * 3, [3.0] * 3]
