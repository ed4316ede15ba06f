"""A client's memory in Flower's context.

Flower hands ``context.state`` from one message of a node to the next, also between processes and
machines. If one process handles all messages, its contexts hold the memory itself.
"""

import torch
from flwr.app import Array, ArrayRecord, Context, MetricRecord, RecordDict, UserConfig

from fedkd_flwr.config import Configuration
from fedkd_flwr.memory.memory import Memory


class InProcessContext(Context):
    """A context of a client whose messages are all handled by this process.

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

    def __init__(self, configuration: Configuration, node_id: int, node_config: UserConfig) -> None:
        super().__init__(1, node_id, node_config, RecordDict(), {})
        self.configuration = configuration
        self.memory = Memory()


def memory_of(context: Context) -> Memory:
    """Return the memory in a context: its own, or a new one with the arrays of its records."""
    if isinstance(context, InProcessContext):
        return context.memory
    state = context.state
    tensors = {
        group: {name: torch.from_numpy(array.numpy()) for name, array in record.items()}
        for group, record in state.array_records.items()
    }
    numbers = {
        group: {name: float(number) for name, number in record.items()}  # type: ignore[arg-type]
        for group, record in state.metric_records.items()
    }
    return Memory(tensors, numbers)


def store_in_context(memory: Memory, context: Context) -> None:
    """Write the changed groups of a memory to its context's records, and drop forgotten ones."""
    if isinstance(context, InProcessContext):
        return
    for group in set(context.state) - {*memory.tensors, *memory.numbers}:
        del context.state[group]
    for group, tensors in memory.tensors.items():
        if group in memory.changed:
            arrays = {name: Array(tensor.cpu().numpy()) for name, tensor in tensors.items()}
            context.state[group] = ArrayRecord(arrays)
    for group, numbers in memory.numbers.items():
        if group in memory.changed:
            context.state[group] = MetricRecord(dict(numbers))
