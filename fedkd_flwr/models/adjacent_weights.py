"""Models of one architecture whose parameters are adjacent in memory.

Such models can be trained together without copying. Each parameter of all models is one tensor,
with one row per model.
"""

import heapq
from collections.abc import Sequence

from torch import Tensor, nn


class Rows:
    """Models whose parameters are moved into shared tensors, one row per model.

    Parameters
    ----------
    models : sequence of nn.Module
        C models of one architecture, on one device.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        self._row_of = {id(model): row for row, model in enumerate(models)}
        self._free = list(range(len(models)))
        self._parameters = {
            name: parameter.new_empty((len(models), *parameter.shape))
            for name, parameter in models[0].named_parameters()
        }
        for row, model in enumerate(models):
            for name, parameter in model.named_parameters():
                parameter.data = self._parameters[name][row]
        self._addresses = [_addresses(model) for model in models]

    @property
    def num_free(self) -> int:
        """Number of free models."""
        return len(self._free)

    def take(self) -> nn.Module | None:
        """Return the first free model, with arbitrary weights, or None."""
        return self._models[heapq.heappop(self._free)] if self._free else None

    def put_back(self, model: nn.Module) -> bool:
        """Free a model if it is one of these, and return whether it is."""
        row = self._row_of.get(id(model))
        if row is None:
            return False
        heapq.heappush(self._free, row)
        return True

    def parameters_of(self, models: Sequence[nn.Module]) -> dict[str, Tensor] | None:
        """Return the stacked parameters of some of these models, sharing memory with them.

        Parameters
        ----------
        models : sequence of nn.Module
            M models.

        Returns
        -------
        dict of str to Tensor or None
            Shape (M, …) by name; None unless the models are consecutive rows.
        """
        first = self._row_of.get(id(models[0]), 0)
        end = first + len(models)
        if [id(model) for model in models] != [id(model) for model in self._models[first:end]]:
            return None
        # A method may have moved a model's parameters elsewhere.
        if [_addresses(model) for model in models] != self._addresses[first:end]:
            return None
        return {name: tensor[first:end] for name, tensor in self._parameters.items()}


def _addresses(model: nn.Module) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]
