"""Stored tensors are in memory blocks, whose places are reused, but never too early."""

import pytest
import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedkd_flwr.clients.blocks import BLOCK, Blocks
from fedkd_flwr.clients.memory import LiveContext, load_tensors, save_tensors
from fedkd_flwr.grids.in_process import InProcessGrid


@pytest.fixture
def kept():
    context = LiveContext(1, 1, {}, RecordDict(), {}, blocks=Blocks())
    save_tensors(context, "model", {"w": torch.full((3, 5), 1.0), "n": torch.tensor(7)})
    context.replace(context.draft())
    return context


def places(context, name="model"):
    return {tensor.data_ptr() for tensor in load_tensors(context, name).values()}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 3).T,
        torch.tensor(3),
        torch.arange(5, dtype=torch.uint8),
        torch.randn(2, dtype=torch.float64),
        torch.empty(0, 3),
        torch.randn(7, requires_grad=True),
        torch.ones(BLOCK // 4 + 1),
    ],
)
def test_a_copy_equals_the_tensor_and_shares_no_memory(tensor):
    blocks = Blocks()
    blocks.copy_of(torch.ones(1, dtype=torch.uint8))  # so that the next place needs aligning
    copy = blocks.copy_of(tensor)
    assert torch.equal(copy, tensor) and copy.dtype == tensor.dtype
    assert copy.is_contiguous() and not copy.requires_grad
    if copy.numel():
        copy.fill_(9)
        assert not torch.equal(copy, tensor)


def test_a_free_place_is_reused_by_the_next_tensor_of_its_kind():
    blocks = Blocks()
    place = blocks.copy_of(torch.zeros(3, 5))
    blocks.free([place])
    assert blocks.copy_of(torch.ones(5, 3)).data_ptr() != place.data_ptr()
    assert blocks.copy_of(torch.ones(3, 5)).data_ptr() == place.data_ptr()
    assert blocks.copy_of(torch.ones(3, 5)).data_ptr() != place.data_ptr()


def test_places_of_different_tensors_do_not_overlap():
    blocks = Blocks()
    tensors = [torch.full((size,), float(size)) for size in (1, 3, 17, 1000, 5)]
    copies = [blocks.copy_of(tensor) for tensor in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        assert torch.equal(copy, tensor)


def test_tensors_that_a_draft_replaces_are_overwritten_only_afterwards(kept):
    before = places(kept)
    draft = kept.draft()
    save_tensors(draft, "model", {"w": torch.full((3, 5), 2.0), "n": torch.tensor(8)})
    save_tensors(draft, "more", {"w": torch.full((3, 5), 3.0)})
    assert load_tensors(kept, "model")["w"].eq(1).all()
    assert not places(draft) & before and not places(draft, "more") & before
    draft.replace(kept)
    later = draft.draft()
    save_tensors(later, "more", {"w": torch.full((3, 5), 4.0)})
    assert places(later, "more") <= before
    assert load_tensors(draft, "model")["w"].eq(2).all()
    assert load_tensors(draft, "more")["w"].eq(3).all()


def test_a_failed_message_changes_no_memory_and_frees_its_places(kept):
    failed = kept.draft()
    save_tensors(failed, "model", {"w": torch.full((3, 5), 2.0), "n": torch.tensor(8)})
    lost = places(failed)
    kept.replace(failed)
    assert load_tensors(kept, "model")["w"].eq(1).all()
    again = kept.draft()
    save_tensors(again, "model", {"w": torch.full((3, 5), 5.0), "n": torch.tensor(9)})
    assert places(again) == lost


def test_a_record_written_twice_in_a_message_frees_its_first_place_at_the_end(kept):
    draft = kept.draft()
    save_tensors(draft, "new", {"w": torch.full((3, 5), 2.0)})
    first = load_tensors(draft, "new")["w"]
    save_tensors(draft, "new", {"w": first + 1})
    save_tensors(draft, "other", {"w": first + 2})
    assert first.eq(2).all()
    draft.replace(kept)
    assert load_tensors(draft, "new")["w"].eq(3).all()
    later = draft.draft()
    save_tensors(later, "third", {"w": torch.zeros(3, 5)})
    assert places(later, "third") == {first.data_ptr()}


def test_tensors_that_grow_do_not_fill_blocks(kept):
    context = kept
    for size in range(1, 200):
        draft = context.draft()
        save_tensors(draft, "growing", {"seen": torch.zeros(size, 1000)})
        draft.replace(context)
        context = draft
    in_blocks = {
        tensor.untyped_storage().data_ptr()
        for name in context.tensors
        for tensor in load_tensors(context, name).values()
        if tensor.untyped_storage().nbytes() == BLOCK
    }
    save_tensors(context, "new", {"w": torch.zeros(2)})
    assert {load_tensors(context, "new")["w"].untyped_storage().data_ptr()} == in_blocks


@pytest.mark.parametrize("more", [1, 16])
def test_a_tensor_with_its_own_block_is_deleted_when_freed(more):
    blocks = Blocks()
    place = blocks.copy_of(torch.zeros(BLOCK // 4 + more))
    blocks.free([place])
    assert blocks.copy_of(torch.zeros(BLOCK // 4 + more)).data_ptr() != place.data_ptr()


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
