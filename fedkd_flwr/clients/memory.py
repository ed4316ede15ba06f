"""A client's memory: named tensors and numbers that it keeps between messages.

They are stored as arrays in Flower's ``context.state``, so that any process on any machine can
handle the client's next message. If one process handles all messages, a `LiveContext` stores the
tensors themselves.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from numpy.typing import NDArray
from torch import Tensor, nn


class LiveContext(Context):
    """A context of a client whose messages are all handled by this process.

    Attributes
    ----------
    tensors : dict of str to dict
        The stored tensors, by record and name. Records are replaced, never changed.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.tensors: dict[str, dict[str, Tensor]] = {}

    def draft(self) -> "LiveContext":
        """Return a copy that a message may change. Afterwards one of the two replaces the other."""
        draft = copy(self)
        draft.tensors = dict(self.tensors)
        return draft

    def keep(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Store copies of named tensors as a record, and replace the previous record."""
        self.tensors[name] = {
            # A contiguous copy: a view of rows of a stack of clients would keep all of it.
            key: value.detach().clone(memory_format=torch.contiguous_format)
            for key, value in tensors.items()
        }


def save_tensors(context: Context, name: str, tensors: Mapping[str, Tensor]) -> None:
    """Store named tensors under a name, and replace what was stored there."""
    if isinstance(context, LiveContext):
        context.keep(name, tensors)
        return
    arrays = {key: Array(value.detach().cpu().numpy()) for key, value in tensors.items()}
    context.state[name] = ArrayRecord(arrays)


def holds(context: Context, name: str) -> bool:
    """Return whether tensors are stored under a name."""
    if isinstance(context, LiveContext):
        return name in context.tensors
    return name in context.state.array_records


def load_tensors(context: Context, name: str) -> dict[str, Tensor] | None:
    """Return the tensors stored under a name, or None. Do not change them."""
    if isinstance(context, LiveContext):
        return context.tensors.get(name)
    record = context.state.array_records.get(name)
    if record is None:
        return None
    return {key: torch.from_numpy(array.numpy()) for key, array in record.items()}


def all_arrays(context: Context) -> dict[str, dict[str, NDArray[Any]]]:
    """Return all stored tensors, by record and name."""
    if isinstance(context, LiveContext):
        return {
            name: {key: value.cpu().numpy() for key, value in record.items()}
            for name, record in context.tensors.items()
        }
    return {
        name: {key: array.numpy() for key, array in record.items()}
        for name, record in context.state.array_records.items()
    }


def forget(context: Context) -> None:
    """Empty a context."""
    context.state.clear()
    if isinstance(context, LiveContext):
        context.tensors.clear()


def save_numbers(context: Context, name: str, numbers: Mapping[str, float]) -> None:
    """Store named numbers under a name, and replace what was stored there."""
    context.state[name] = MetricRecord(dict(numbers))


def load_numbers(context: Context, name: str) -> dict[str, float]:
    """Return the numbers stored under a name, or an empty dictionary."""
    record = context.state.metric_records.get(name, MetricRecord())
    return {key: float(value) for key, value in record.items()}  # type: ignore[arg-type]


def save_model(context: Context, name: str, model: nn.Module) -> None:
    """Store a model's parameters and buffers."""
    save_tensors(context, name, model.state_dict())


def load_model(context: Context, name: str, model: nn.Module) -> bool:
    """Load stored weights into a model. Return False if there are none."""
    tensors = load_tensors(context, name)
    if tensors is None:
        return False
    fill_model(model, tensors)
    return True


@torch.no_grad()
def fill_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite the named parameters and buffers of a model. The others do not change.

    Raises
    ------
    ValueError
        If the model has no such name, or a tensor of another shape.
    """
    own = model.state_dict()
    for name, tensor in tensors.items():
        if name not in own or own[name].shape != tensor.shape:
            raise ValueError(f"the model has no {name} of shape {tuple(tensor.shape)}")
        own[name].copy_(tensor)


def save_optimizer(context: Context, name: str, optimizer: torch.optim.Optimizer) -> None:
    """Store an optimizer's state, such as momenta and step counts.

    An entry's name is its parameter's position and its own name, such as ``3/exp_avg``.
    """
    entries = {
        f"{position}/{key}": torch.as_tensor(value)
        for position, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
        if value is not None
    }
    if entries:
        save_tensors(context, name, entries)


def load_optimizer(context: Context, name: str, optimizer: torch.optim.Optimizer) -> None:
    """Load the stored state into an optimizer, if any. Its learning rate does not change."""
    entries = load_tensors(context, name)
    if entries is None:
        return
    state: dict[int, dict[str, Tensor]] = {}
    for entry, value in entries.items():
        position, _, key = entry.partition("/")
        # The optimizer changes its state in place, but the memory must not change.
        state.setdefault(int(position), {})[key] = value.clone()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
