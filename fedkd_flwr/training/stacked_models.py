"""The models of several clients as one: stacked weights, (clients, …), and descent on them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from fedkd_flwr.models.model_pool import adjacent_parameters
from fedkd_flwr.training.loop import RUNNING_STATISTICS, trained_by

Tensors = dict[str, Tensor]
"""Named tensors. Stacked tensors have one more dimension in front, the clients."""


class Stack:
    """Models of one architecture as one stacked model, (C, …); one `skeleton` serves all."""

    def __init__(self, models: Sequence[nn.Module], training: bool) -> None:
        for model in models:
            model.train(training)
        self.models = models
        self.skeleton = models[0]
        as_they_lie = adjacent_parameters(models)
        self._is_copy = as_they_lie is None
        self.parameters = as_they_lie or _stacked(model.named_parameters() for model in models)
        self.buffers = _stacked(model.named_buffers() for model in models)

    def sums(self) -> list[float]:
        """Return the sum of each model's weights and running statistics."""
        names = [name for name in self.buffers if name.endswith(RUNNING_STATISTICS)]
        trained = [*self.parameters.values(), *(self.buffers[name] for name in names)]
        # A weight may be a scalar, whose only dimension is the clients.
        rows = [tensor.detach().unsqueeze(-1).flatten(1).sum(1) for tensor in trained]
        return torch.stack(rows).sum(0).tolist()

    @torch.no_grad()
    def unstack(self) -> None:
        """Write the values back into the models, unless the models share them."""
        for position, model in enumerate(self.models):
            if self._is_copy:
                for name, parameter in model.named_parameters():
                    parameter.copy_(self.parameters[name][position])
            for name, buffer in model.named_buffers() if self.buffers else ():
                buffer.copy_(self.buffers[name][position])


@torch.no_grad()
def _stacked(named: Iterable[Iterable[tuple[str, Tensor]]]) -> Tensors:
    columns = zip(*named, strict=True)
    return {column[0][0]: torch.stack([tensor for _, tensor in column]) for column in columns}


class Chosen:
    """The clients of a cohort that take a step together, by position; often all of them."""

    def __init__(self, members: Sequence[int], clients: int, device: torch.device) -> None:
        self._are_all = len(members) == clients
        self.index = torch.tensor(members, device=device)

    def of(self, stacked: Tensor) -> Tensor:
        """Return their part of a stacked tensor, or the tensor itself if they are all clients."""
        return stacked if self._are_all else stacked[self.index]

    def put(self, stacked: Tensor, values: Tensor) -> None:
        """Write their part back into a stacked tensor, unless it is the tensor itself."""
        if not self._are_all:
            stacked[self.index] = values


def trained_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the names of a model's parameters that an optimizer trains, in the model's order."""
    trained = set(trained_by(optimizer))
    return [name for name, parameter in model.named_parameters() if parameter in trained]


class StackedDescent:
    """Stochastic gradient descent on stacked parameters, equal to PyTorch's for each client."""

    def __init__(self, stack: Stack, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.names = trained_names(stack.skeleton, optimizers[0])
        self._clients = list(zip(stack.models, optimizers, strict=True))
        self._parameters = parameters = stack.parameters
        group = optimizers[0].param_groups[0]
        self._rate, self._momentum = group["lr"], group["momentum"]
        self._decay = group["weight_decay"]
        self._fused = all(tensor.device.type in ("cpu", "cuda") for tensor in parameters.values())
        named = (self._named_momenta(*client) for client in self._clients)
        self._momenta = _stacked(named) if self._momentum else {}

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor | None], chosen: Chosen) -> None:
        """Take a step for some clients. `gradients` have shape (members, …)."""
        # A fused step reads and writes memory once, which takes longer than the arithmetic.
        own = {name: value.contiguous() for name, value in gradients.items() if value is not None}
        parameters = [chosen.of(self._parameters[name]) for name in own]
        momenta = [chosen.of(self._momenta[name]) for name in own if self._momentum]
        no_momenta: list[Tensor | None] = [None] * len(own)
        sgd(
            parameters,
            list(own.values()),
            [*momenta] or no_momenta,
            fused=self._fused,
            lr=self._rate,
            momentum=self._momentum,
            weight_decay=self._decay,
            dampening=0,
            nesterov=False,
            maximize=False,
        )
        for stacked, values in ((self._parameters, parameters), (self._momenta, momenta)):
            for name, value in zip(own, values, strict=False):
                chosen.put(stacked[name], value)

    def _named_momenta(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield a client's momenta by parameter; zeros if it has none."""
        for name in self.names:
            parameter = model.get_parameter(name)
            kept: Tensor | None = optimizer.state.get(parameter, {}).get("momentum_buffer")
            yield name, torch.zeros_like(parameter) if kept is None else kept

    def unstack(self) -> None:
        """Store the momenta in the clients' optimizers."""
        for position, (model, optimizer) in enumerate(self._clients if self._momenta else ()):
            for name in self.names:
                state = optimizer.state[model.get_parameter(name)]
                state["momentum_buffer"] = self._momenta[name][position]
