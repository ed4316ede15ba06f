"""Where a client's memory is kept between two messages: in Flower's context.

Flower hands ``context.state`` from one message of a node to the next, also between processes and
machines. If one process handles all messages, its contexts hold the memory itself.
"""

from collections.abc import Mapping

import torch
from flwr.app import Array, ArrayRecord, Context, MetricRecord, RecordDict, UserConfig

from fedkd_flwr.config import Configuration
from fedkd_flwr.memory.memory import Memory


class InProcessContext(Context):
    """A context of a client whose messages are all handled by this process.

    A copy has a draft of the memory.

    Parameters
    ----------
    configuration : Configuration
        The run config, which this process has read already; Flower's flat one is empty.
    node_id : int
        The node.
    node_config : mapping
        Its config.

    Attributes
    ----------
    memory : Memory
        The client's memory, as tensors on their device.
    """

    is_in_process = True

    def __init__(self, configuration: Configuration, node_id: int, node_config: UserConfig) -> None:
        super().__init__(1, node_id, node_config, RecordDict(), {})
        self.configuration = configuration
        self.memory = Memory()

    def __copy__(self) -> "InProcessContext":
        copied = InProcessContext(self.configuration, self.node_id, self.node_config)
        copied.memory = self.memory.draft()
        return copied

    def keep(self, memory: Memory) -> None:
        """Keep a memory for the next message."""
        self.memory = memory


def memories_in(contexts: Mapping[int, Context]) -> dict[int, Memory]:
    """Return the memories of the contexts that hold one."""
    kept = contexts.items()
    return {n: context.memory for n, context in kept if isinstance(context, InProcessContext)}


class ContextOfNode:
    """Flower's own context of a client, as on the nodes of a federation and under Ray.

    Parameters
    ----------
    context : Context
        Flower's context.

    Attributes
    ----------
    memory : Memory
        A new one with the arrays and numbers of the context's records.
    """

    is_in_process = False

    def __init__(self, context: Context) -> None:
        self._state = state = context.state
        tensors = {
            group: {name: torch.from_numpy(array.numpy()) for name, array in record.items()}
            for group, record in state.array_records.items()
        }
        numbers = {
            group: {name: float(number) for name, number in record.items()}  # type: ignore[arg-type]
            for group, record in state.metric_records.items()
        }
        self.memory = Memory(tensors, numbers)

    def keep(self, memory: Memory) -> None:
        """Write a memory's changed groups to the records, and drop forgotten ones."""
        state = self._state
        for group in set(state) - {*memory.tensors, *memory.numbers}:
            del state[group]
        for group, tensors in memory.tensors.items():
            if group in memory.changed:
                arrays = {name: Array(tensor.cpu().numpy()) for name, tensor in tensors.items()}
                state[group] = ArrayRecord(arrays)
        for group, numbers in memory.numbers.items():
            if group in memory.changed:
                state[group] = MetricRecord(dict(numbers))


class PartOfMemory:
    """The `memory` of a safeguard's private model: groups with a prefix in the client's memory."""

    is_in_process = True

    def __init__(self, whole: Memory, prefix: str) -> None:
        self._whole, self._prefix = whole, prefix
        self.memory = whole.part(prefix)

    def keep(self, memory: Memory) -> None:
        """Take a memory's changed groups over into the whole."""
        self._whole.keep_part(self._prefix, memory)


Place = InProcessContext | ContextOfNode | PartOfMemory
"""Where a memory is kept between two messages."""


def own_context(context: Context) -> InProcessContext | ContextOfNode:
    """Return a client's context as its memory's place."""
    return context if isinstance(context, InProcessContext) else ContextOfNode(context)
