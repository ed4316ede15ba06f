"""Models of one architecture whose parameters lie side by side.

To train such models at once nothing has to be copied: a parameter of all of them is one tensor,
with one row a model.
"""

import heapq
from collections.abc import Sequence
from copy import deepcopy

from torch import Tensor, nn


class Rows:
    """Copies of a model, each on a row of its own.

    Parameters
    ----------
    model : nn.Module
        What is copied.
    count : int
        C, how many copies there are.
    """

    def __init__(self, model: nn.Module, count: int) -> None:
        self._parameters = {
            name: parameter.new_empty((count, *parameter.shape))
            for name, parameter in model.named_parameters()
        }
        self._models = [deepcopy(model) for _ in range(count)]
        self._row_of = {id(copy): row for row, copy in enumerate(self._models)}
        self._free = list(range(count))
        for row, copy in enumerate(self._models):
            for name, parameter in copy.named_parameters():
                parameter.data = self._parameters[name][row]

    def __len__(self) -> int:
        return len(self._models)

    def take(self) -> nn.Module | None:
        """Return the first free model, with whatever weights it has; None where none is free."""
        return self._models[heapq.heappop(self._free)] if self._free else None

    def put_back(self, model: nn.Module) -> bool:
        """Free a model, if it is one of these; return whether it is."""
        row = self._row_of.get(id(model))
        if row is None:
            return False
        heapq.heappush(self._free, row)
        return True

    def parameters_of(self, models: Sequence[nn.Module]) -> dict[str, Tensor] | None:
        """Return the parameters of some of these models as they lie, changed as they change.

        Parameters
        ----------
        models : sequence of nn.Module
            M models.

        Returns
        -------
        dict of str to Tensor or None
            Shape (M, …) by name; None unless the models are rows that follow one another.
        """
        rows = [self._row_of.get(id(model)) for model in models]
        first = rows[0]
        if first is None or rows != list(range(first, first + len(rows))):
            return None
        return {
            name: tensor[first : first + len(rows)] for name, tensor in self._parameters.items()
        }
