"""A client's memory: named groups of tensors, and named groups of numbers."""

from collections import defaultdict
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

ROUND = "progress"
"""Name of the numbers with the round that a memory includes."""

OWNER = "owner"
"""Name of the numbers that tell to which run a memory belongs."""

SPENT = "dp-sgd"
"""Name of the tensor of the steps that count for epsilon."""

MODEL = "model"
"""Name of the tensors of the client's model."""

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
                self.tensors.pop(prefix + name, None)
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

    # ---- Models and optimizers -----------------------------------------------------------

    def save_model(self, group: str, model: nn.Module) -> None:
        """Store a model's parameters and buffers."""
        self.save(group, model.state_dict())

    def save_momentum(
        self,
        optimizer: torch.optim.Optimizer,
        names: Mapping[nn.Parameter, str],
        without: Collection[nn.Parameter] = (),
    ) -> None:
        """Store an optimizer's state, such as momenta and step counts, by parameter.

        An entry's name is that of its parameter and its own, as ``model/head.bias/exp_avg``.
        `names` are network and name of each parameter; the stored state of those in `without` stays
        as it is.
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
        """Load the stored state into an optimizer, if any. Its learning rate does not change.

        `names` are network and name of each parameter; those in `without` start without state.
        """
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
