"""A client's memory: tensors in and out of Flower's ``context.state``.

Whatever a client keeps between messages lies in its context as named arrays, so that any
process of any machine can serve the client's next message.
"""

from collections.abc import Mapping

import torch
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from torch import Tensor, nn


def save_tensors(context: Context, name: str, tensors: Mapping[str, Tensor]) -> None:
    """Keep named tensors under a name, in place of what was there."""
    arrays = {key: Array(value.detach().cpu().numpy()) for key, value in tensors.items()}
    context.state[name] = ArrayRecord(arrays)


def load_tensors(context: Context, name: str) -> dict[str, Tensor] | None:
    """Return the tensors kept under a name, or None where there are none."""
    record = context.state.array_records.get(name)
    if record is None:
        return None
    return {key: torch.from_numpy(array.numpy()) for key, array in record.items()}


def save_numbers(context: Context, name: str, numbers: Mapping[str, float]) -> None:
    """Keep named numbers under a name, in place of what was there."""
    context.state[name] = MetricRecord(dict(numbers))


def load_numbers(context: Context, name: str) -> dict[str, float]:
    """Return the numbers kept under a name; empty where there are none."""
    record = context.state.metric_records.get(name, MetricRecord())
    return {key: float(value) for key, value in record.items()}  # type: ignore[arg-type]


def save_model(context: Context, name: str, model: nn.Module) -> None:
    """Keep a model's parameters and buffers."""
    save_tensors(context, name, model.state_dict())


def load_model(context: Context, name: str, model: nn.Module) -> bool:
    """Fill a model with what was kept; return False where nothing was."""
    tensors = load_tensors(context, name)
    if tensors is None:
        return False
    fill_model(model, tensors)
    return True


def fill_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite the named parameters and buffers of a model, leaving the others as they are.

    Raises
    ------
    RuntimeError
        If the model has no such name, or another shape.
    """
    # The model's own state dict carries versions without which older formats are assumed.
    state_dict = model.state_dict()
    state_dict.update(tensors)
    model.load_state_dict(state_dict)


def save_optimizer(context: Context, name: str, optimizer: torch.optim.Optimizer) -> None:
    """Keep an optimizer's whole state, such as momenta and counts of steps.

    Each entry is named by the position of its parameter and its own name, ``3/exp_avg``.
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
    """Give an optimizer the state that was kept, if any; its step size stays its own."""
    entries = load_tensors(context, name)
    if entries is None:
        return
    state: dict[int, dict[str, Tensor]] = {}
    for entry, value in entries.items():
        position, _, key = entry.partition("/")
        state.setdefault(int(position), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
