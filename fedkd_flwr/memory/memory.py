"""A client's memory: tensors and numbers by group; where it is kept, and states in it."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from flwr.app import Array, ArrayRecord, Context, MetricRecord, RecordDict, UserConfig
from torch import Tensor, nn

from fedkd_flwr.config import Configuration
from strategies.core.state import saved_fields

ROUND = "progress"  # name of the numbers with the round that a memory includes
OWNER = "owner"  # name of the numbers that tell to which run a memory belongs
SPENT = "dp-sgd"  # name of the tensor of the steps that count for epsilon
MODEL = "model"  # name of the tensors of the client's model

MOMENTA, OF_HEAD = "optimizer", "head-optimizer"
"""Name of the tensors of optimizers, and of those of FedRep in earlier versions."""

PRIVATE = "safeguard-"
"""Beginning of the names of a safeguard's private model and optimizer."""

OF_SESSION = (ROUND, OWNER, SPENT, MODEL, MOMENTA)
"""Names of what every method's client keeps; the state of a method has other ones."""


class Memory:
    """What a client keeps from one message to the next: tensors and numbers, by group and name.

    The model's tensors have the group ``model``. Groups are replaced, never changed: a draft of a
    memory shares them with the original. `changed` are those saved since the memory was read.
    """

    def __init__(
        self,
        tensors: Mapping[str, dict[str, Tensor]] | None = None,
        numbers: Mapping[str, dict[str, float]] | None = None,
    ) -> None:
        self.tensors = dict(tensors or {})
        self.numbers = dict(numbers or {})
        self.changed: set[str] = set()

    @property
    def server_round(self) -> int:
        """The last round in which the client trained; 0 for none."""
        return int(self.load_numbers(ROUND).get("round", 0))

    @property
    def start(self) -> int:
        """Which start of the run the last round was after, counted from 1."""
        return int(self.load_numbers(ROUND).get("start", 1))

    @property
    def holds_state(self) -> bool:
        """Whether it holds more than the round and the run, and so belongs on disk."""
        return bool(self.tensors or self.numbers.keys() - {ROUND, OWNER})

    def draft(self) -> "Memory":
        """Return a copy that a message may change. Afterwards one of the two replaces the other."""
        return Memory(self.tensors, self.numbers)

    def replace(self, other: "Memory") -> None:
        """Forget everything, and take over another memory."""
        self.tensors, self.numbers = dict(other.tensors), dict(other.numbers)
        self.changed = {*self.tensors, *self.numbers}

    def for_new_run(self, with_momentum: bool) -> "Memory":
        """Return what another run continues from: all but the round, and who has counted it."""
        dropped = {ROUND, OWNER, SPENT}
        if not with_momentum:
            dropped |= {MOMENTA, OF_HEAD, PRIVATE + MOMENTA}
        kept = Memory(self.tensors, self.numbers)
        for group in dropped:
            kept.forget(group)
        return kept

    def note_round(self, server_round: int, owner: Mapping[str, float], start: int = 1) -> None:
        """Note that the memory includes a round of a run, and after which start of it."""
        self.save_numbers(ROUND, {"round": server_round, "start": start})
        self.save_numbers(OWNER, owner)

    def belongs_to(self, owner: Mapping[str, float]) -> bool:
        """Return whether the memory is of this run, or of none yet."""
        return ROUND not in self.numbers or self.load_numbers(OWNER) == owner

    def part(self, prefix: str) -> "Memory":
        """Return the groups whose names begin with a prefix, under the rest of their names."""
        cut = len(prefix)
        return Memory(
            {name[cut:]: own for name, own in self.tensors.items() if name.startswith(prefix)},
            {name[cut:]: own for name, own in self.numbers.items() if name.startswith(prefix)},
        )

    def keep_part(self, prefix: str, part: "Memory") -> None:
        """Take over the changed groups of a `part`."""
        for name in part.changed:
            if name in part.tensors:
                self.tensors[prefix + name] = part.tensors[name]
            if name in part.numbers:
                self.numbers[prefix + name] = part.numbers[name]
            if name not in part.tensors and name not in part.numbers:
                self.forget(prefix + name)
            self.changed.add(prefix + name)

    # ---- Tensors and numbers -------------------------------------------------------------

    def save(self, group: str, tensors: Mapping[str, Tensor]) -> None:
        """Store copies of named tensors, and replace the group."""
        self.tensors[group] = {name: _copied(tensor) for name, tensor in tensors.items()}
        self.changed.add(group)

    def load(self, group: str) -> dict[str, Tensor] | None:
        """Return the tensors of a group, or None. Do not change them."""
        return self.tensors.get(group)

    def save_numbers(self, group: str, numbers: Mapping[str, float]) -> None:
        """Store named numbers, and replace the group."""
        self.numbers[group] = {name: float(number) for name, number in numbers.items()}
        self.changed.add(group)

    def load_numbers(self, group: str) -> dict[str, float]:
        """Return the numbers of a group, or an empty dictionary."""
        return self.numbers.get(group, {})

    def forget(self, group: str) -> None:
        """Remove a group, if there is one."""
        if self.tensors.pop(group, None) is not None or self.numbers.pop(group, None) is not None:
            self.changed.add(group)

    # ---- Optimizers ------------------------------------------------------------------

    def save_momentum(
        self,
        optimizer: torch.optim.Optimizer,
        names: Mapping[nn.Parameter, str],
        without: Collection[nn.Parameter] = (),
    ) -> None:
        """Store an optimizer's state by parameter, as ``model/head.bias/exp_avg``.

        The stored state of parameters in `without` stays as it is.
        """
        trained = {names[own]: own for own in _parameters(optimizer, without)}
        if not trained:
            return
        momenta = {
            f"{name}/{part}": tensor
            for name, parts in self._momenta().items()
            for part, tensor in parts.items()
            if name not in trained and not name.isdigit()
        }
        for name, own in trained.items():
            for part, value in optimizer.state.get(own, {}).items():
                if value is not None:
                    momenta[f"{name}/{part}"] = _copied(torch.as_tensor(value))
        self.forget(MOMENTA)
        self.forget(OF_HEAD)
        if momenta:
            self.tensors[MOMENTA] = momenta
            self.changed.add(MOMENTA)

    def _momenta(self) -> dict[str, dict[str, Tensor]]:
        """Return the stored state of optimizers by parameter.

        Earlier versions named a parameter by its place in the optimizer.
        """
        momenta: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for entry, value in (self.load(MOMENTA) or self.load(OF_HEAD) or {}).items():
            name, _, part = entry.rpartition("/")
            momenta[name][part] = value
        return momenta

    def load_momentum(
        self,
        optimizer: torch.optim.Optimizer,
        names: Mapping[nn.Parameter, str],
        without: Collection[nn.Parameter] = (),
    ) -> None:
        """Load the stored state into an optimizer, but for parameters in `without`."""
        momenta, left_out, state = self._momenta(), set(without), {}
        for place, own in enumerate(_parameters(optimizer)):
            parts = momenta.get(names[own]) or momenta.get(str(place))
            if parts and own not in left_out:
                # The optimizer changes its state in place, but the memory must not change.
                state[place] = {part: value.clone() for part, value in parts.items()}
        if state:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _copied(tensor: Tensor) -> Tensor:
    """Return a contiguous copy: a view of rows of a stack of clients would keep all of it."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _parameters(
    optimizer: torch.optim.Optimizer, without: Collection[nn.Parameter] = ()
) -> list[nn.Parameter]:
    """Return the parameters of an optimizer in their order, but for some."""
    left_out = set(without)
    parameters = (own for part in optimizer.param_groups for own in part["params"])
    return [own for own in parameters if own not in left_out]


class InProcessContext(Context):
    """A context of a client whose messages are all handled by this process.

    The process has read the run config already, so Flower's flat one is empty. The client's memory
    has tensors on their device; a copy of the context has a draft of it.
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

    `memory` is a new one with the arrays and numbers of the context's records.
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


@dataclass(kw_only=True)
class State:
    """The state of a client whose method keeps nothing of its own, and the base of all others."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field."""
        if name not in type(self).__dataclass_fields__:
            raise AttributeError(f"`{name}` is no field of {type(self).__qualname__}; declare it")
        super().__setattr__(name, value)


AnyState = TypeVar("AnyState", bound=State)

Versions = list[tuple[str, Any, int]]
"""Parts of a field by name, each with the number of changes of a tensor in place."""


class StoredState:
    """A client's state, read from its memory and saved there.

    A part of the memory that holds a field is named after the field. Tensors are copies on the
    device, and may be changed in place. `begin` returns the state before the first message, for
    what the memory does not hold. Raises `TypeError` if a field has the name of something that
    every client keeps.
    """

    def __init__(
        self, kind: type[State], memory: Memory, device: str, begin: Callable[[], State]
    ) -> None:
        if taken := [f.name for f in saved_fields(kind) if _group(f.name) in OF_SESSION]:
            raise TypeError(f"{kind.__qualname__}: every client keeps {taken[0]}; rename the field")
        hints = get_type_hints(kind)
        stored = {
            field.name: _read(hints[field.name], memory, _group(field.name), device)
            for field in saved_fields(kind)
        }
        found = {name: value for name, value in stored.items() if value is not None}
        if len(found) == len(stored):
            self.value = kind(**found)
        else:
            self.value = begin()
            for name, value in found.items():
                setattr(self.value, name, value)
        self._as_read = {name: _versions(value) for name, value in found.items()}

    def save(self, memory: Memory) -> None:
        """Save the changed fields in a memory."""
        for field in saved_fields(self.value):
            name, value = field.name, getattr(self.value, field.name)
            if not _is_unchanged(self._as_read.get(name, []), _versions(value)):
                _save(memory, _group(name), value, f"{type(self.value).__qualname__}.{name}")
            self._as_read[name] = _versions(value)


def _group(name: str) -> str:
    """Return the name of a field in a memory, as in ``private-weight``."""
    return name.replace("_", "-")


def _read(hint: Any, memory: Memory, group: str, device: str) -> Any:
    """Return the value of a field, or None if the memory has none."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if get_origin(hint) in (Union, UnionType):
        return _read(kinds[0], memory, group, device)
    if (tensors := memory.load(group)) is not None:
        copies = {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}
        return copies[group] if hint is Tensor else copies
    numbers = memory.load_numbers(group)
    if get_origin(hint) is dict:
        return dict(numbers) if group in memory.numbers else None
    return hint(numbers[group]) if group in numbers else None


def _save(memory: Memory, group: str, value: Any, name: str) -> None:
    if value is None or (isinstance(value, Mapping) and not value):
        memory.forget(group)
    elif isinstance(value, Tensor):
        memory.save(group, {group: value})
    elif isinstance(value, int | float):
        memory.save_numbers(group, {group: value})
    elif _is_dict_of(value, Tensor):
        memory.save(group, value)
    elif _is_dict_of(value, int | float):
        memory.save_numbers(group, value)
    else:
        raise TypeError(
            f"{name} is of type {type(value).__name__}; a client's state holds tensors, numbers, "
            "and dicts of them by str"
        )


def _is_dict_of(value: Any, kind: type | UnionType) -> bool:
    return isinstance(value, Mapping) and all(isinstance(part, kind) for part in value.values())


def _versions(value: Any) -> Versions:
    """Return what shows whether a field is changed, by assignment or in place."""
    parts = value.items() if isinstance(value, Mapping) else [("", value)]
    return [(name, part, _changes(part)) for name, part in parts]


def _changes(part: Any) -> int:
    return part._version if torch.is_tensor(part) and not part.is_inference() else 0


def _is_unchanged(before: Versions, now: Versions) -> bool:
    if len(before) != len(now):
        return False
    pairs = zip(before, now, strict=True)
    return all(a == b and one is other and x == y for (a, one, x), (b, other, y) in pairs)
