"""Training of several clients with one architecture as a cohort: one batched model.

Launching the operations of a small network takes longer than their arithmetic. So models are
stacked, and each operation runs for all at once (`torch.func`). Each client keeps its own batches,
optimizer state and divergence check. Results equal those of the plain loop up to rounding.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.sgd import sgd

from fedkd_flwr.custom_objects.importing import is_custom
from fedkd_flwr.models.model_pool import Architecture, borrow, give_back
from fedkd_flwr.models.torch_internals import convolves, draws_while_training, has_hooks
from fedkd_flwr.training.batched_functions import BatchedFunctions, Objective
from fedkd_flwr.training.jobs import Job, PredictJob, SuspendedClient, TrainJob
from fedkd_flwr.training.loop import (
    INFERENCE_BATCH,
    RUNNING_STATISTICS,
    SGD,
    Batch,
    DivergedError,
    backpropagate,
    require_finite,
    require_finite_weights,
    require_gradient,
    required_loss,
    trained_by,
)

Answer = TypeVar("Answer")

LARGEST_COHORT = 64  # largest number of clients in a cohort

STACKED_NUMBERS = {"cpu": 1_500_000, "cuda": 2**25}
"""Largest number of parameters of all stacked models together, by device.

The parameters of a step, with gradients and momenta, have to fit into a processor's cache.
"""

PLAIN_DESCENT = (torch.optim.SGD, SGD)
"""PyTorch's stochastic gradient descent. A derived class may take other steps."""


def run_together(clients: Sequence[Callable[[], Answer]], device: str) -> list[Answer | Exception]:
    """Train several clients, equal jobs together, until each has its answer or exception."""
    suspended = [SuspendedClient(serve, device) for serve in clients]
    answers: dict[int, Answer | Exception] = {}
    results: dict[int, Any] = dict.fromkeys(range(len(clients)))
    try:
        while results:
            jobs: dict[int, Job] = {}
            for position, result in results.items():
                client = suspended[position]
                try:
                    reached = client.go_on(result)
                except Exception as error:
                    answers[position] = error
                else:
                    (answers if client.dead else jobs)[position] = reached
            results = _do(jobs)
    finally:
        for client in suspended:
            client.close()
    return [answers[position] for position in range(len(clients))]


def _do(jobs: Mapping[int, Job]) -> dict[int, Any]:
    """Return the result of every job, or its error."""
    results: dict[int, Any] = {}
    cohorts: dict[Hashable, list[int]] = defaultdict(list)
    for position, job in jobs.items():
        kind = cohort_key(job)
        # A new object equals no other, so a job without a kind runs alone.
        cohorts[kind if kind is not None else object()].append(position)
    for members in cohorts.values():
        results |= zip(members, _do_equal([jobs[n] for n in members]), strict=True)
    return results


def _do_equal(jobs: Sequence[Job]) -> list[Any]:
    try:
        if len(jobs) == 1:
            return [jobs[0].run()]
        if isinstance(jobs[0], PredictJob):
            return list(predict_together(jobs))  # type: ignore[arg-type]
        return train_together(jobs)  # type: ignore[arg-type]
    # Custom losses and networks may raise anything. Only these clients fail.
    except Exception as error:
        return [error] * len(jobs)


def cohort_key(job: Job) -> Hashable | None:
    """Return what two jobs must have in common to run together; None for one that runs alone.

    That is the architecture and, in training, the loss and plain optimizers with the names of their
    parameters.
    """
    architecture: Hashable | None = vars(job.model).get("architecture")
    if architecture is None:
        return None
    if isinstance(job, PredictJob):
        return architecture, tuple(job.images.shape[1:])
    if job.gradients is not backpropagate:
        return None
    if draws_while_training(job.model) or not _is_value(job.loss):
        return None
    descents = tuple(_plain_descent(job.model, optimizer) for optimizer in job.optimizers)
    if None in descents:
        return None
    shapes = tuple(tensor.shape for tensor in _tensors_of(job))
    return architecture, job.loss, shapes, descents


def _plain_descent(model: nn.Module, optimizer: torch.optim.Optimizer) -> Hashable | None:
    """Return the settings of plain descent, and the names of what it trains; None for others."""
    if type(optimizer) not in PLAIN_DESCENT or has_hooks(optimizer):
        return None
    group, *others = optimizer.param_groups
    is_varied = any(group[name] for name in ("nesterov", "dampening", "maximize"))
    if others or is_varied or not set(trained_by(optimizer)) <= set(model.parameters()):
        return None
    names = tuple(trained_names(model, optimizer))
    return group["lr"], group["momentum"], group["weight_decay"], names


def _is_value(loss: object) -> bool:
    try:
        hash(loss)
    # A custom loss may have attributes without a hash.
    except TypeError:
        return False
    return True


def train_together(jobs: Sequence[TrainJob]) -> list[float | Exception]:
    """Run the optimizer steps of jobs of one kind; return each client's mean loss or error."""
    stack = Stack([job.model for job in jobs], training=True)
    turns = zip(*(job.optimizers for job in jobs), strict=True)
    descents = [StackedDescent(stack, optimizers) for optimizers in turns]
    owned = [torch.stack(tensors) for tensors in zip(*map(_tensors_of, jobs), strict=True)]
    objective = Objective(stack.skeleton, jobs[0].loss)
    totals = torch.zeros(len(jobs), device=next(iter(stack.parameters.values())).device)
    firsts = torch.zeros_like(totals)
    seen = [0] * len(jobs)
    errors: dict[int, Exception] = {}

    def loss_of_one(
        parameters: Tensors, buffers: Tensors, tensors: Sequence[Tensor], batch: Batch
    ) -> Tensor:
        named = {f"model.{name}": tensor for name, tensor in (parameters | buffers).items()}
        return required_loss(functional_call(objective, named, (tensors, batch)))

    losses_of = torch.func.vmap(loss_of_one, randomness="error")

    def take_step(descent: StackedDescent, members: Sequence[int], batch: Batch) -> None:
        chosen = Chosen(members, len(jobs), totals.device)
        parameters = {name: chosen.of(own).detach() for name, own in stack.parameters.items()}
        leaves = {name: parameters[name].requires_grad_() for name in descent.names}
        buffers = {name: chosen.of(tensor) for name, tensor in stack.buffers.items()}
        losses = losses_of(parameters, buffers, [chosen.of(tensor) for tensor in owned], batch)
        require_gradient(losses)
        gradients = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
        descent.step(dict(zip(leaves, gradients, strict=True)), chosen)
        for name, buffer in buffers.items():
            chosen.put(stack.buffers[name], buffer)
        if step < len(descents):
            firsts[chosen.index] += losses.detach()
        if descent is descents[-1]:
            totals[chosen.index] += losses.detach() * batch[0].shape[1]
            for member in members:
                seen[member] += batch[0].shape[1]

    for step, members, batch in _steps_by_shape(jobs, errors):
        try:
            take_step(descents[step % len(descents)], members, batch)
        # Batch normalization refuses a batch of one sample, and a custom loss may refuse others.
        except Exception as error:
            errors |= dict.fromkeys(members, error)
    stack.unstack()
    for descent in descents:
        descent.unstack()
    means = [total / max(count, 1) for total, count in zip(totals.tolist(), seen, strict=True)]
    results = map(_checked, means, stack.sums(), firsts)
    return [errors.get(position) or result for position, result in enumerate(results)]


def _tensors_of(job: TrainJob) -> Sequence[Tensor]:
    return getattr(job.loss, "tensors", ())


def _checked(loss: float, weights: float, first: Tensor) -> float | DivergedError:
    try:
        require_finite(loss, first)
        require_finite_weights(weights)
    except DivergedError as error:
        return error
    return loss


def _steps_by_shape(
    jobs: Sequence[TrainJob], errors: dict[int, Exception]
) -> Iterator[tuple[int, list[int], Batch]]:
    """Yield, step by step, groups of clients with batches of one shape, and these stacked.

    A client with an error in `errors` takes no further steps. Those of its batches are added.
    """
    batches = {position: iter(job.batches) for position, job in enumerate(jobs)}
    for step in itertools.count():
        if not batches:
            return
        by_shape: dict[Hashable, list[tuple[int, Batch]]] = defaultdict(list)
        for position, iterator in list(batches.items()):
            try:
                batch = None if position in errors else next(iterator, None)
            except Exception as error:
                errors[position] = error
                batch = None
            if batch is None:
                del batches[position]
            else:
                by_shape[tuple(part.shape for part in batch)].append((position, batch))
        for alike in by_shape.values():
            members = [position for position, _ in alike]
            yield step, members, tuple(map(torch.stack, zip(*(b for _, b in alike), strict=True)))


@torch.inference_mode()
def predict_together(jobs: Sequence[PredictJob]) -> Iterator[Tensor]:
    """Yield each client's logits; images of one shape are processed together."""
    stack = Stack([job.model for job in jobs], training=False)

    def model(parameters: Tensors, buffers: Tensors, images: Tensor) -> Tensor:
        with BatchedFunctions():
            outputs: Tensor = functional_call(stack.skeleton, (parameters, buffers), (images,))
        return outputs

    logits: dict[int, Tensor] = {}
    by_shape: dict[Hashable, list[int]] = defaultdict(list)
    for position, job in enumerate(jobs):
        by_shape[job.images.shape].append(position)
    for members in by_shape.values():
        chosen = Chosen(members, len(jobs), jobs[0].images.device)
        parameters, buffers = (
            {name: chosen.of(tensor) for name, tensor in tensors.items()}
            for tensors in (stack.parameters, stack.buffers)
        )
        images = [jobs[n].images for n in members]
        # All clients of a process share one tensor of public images.
        is_shared = all(image is images[0] for image in images)
        inputs = images[0] if is_shared else torch.stack(images)
        through = torch.func.vmap(model, in_dims=(0, 0, None if is_shared else 0))
        chunks = torch.split(inputs, INFERENCE_BATCH, dim=0 if is_shared else 1)
        outputs = torch.cat([through(parameters, buffers, chunk) for chunk in chunks], dim=1)
        logits |= zip(members, outputs.float(), strict=True)
    for position in range(len(jobs)):
        yield logits[position].clone()


@lru_cache
def cohort_size(architecture: Architecture, cohort: str) -> int:
    """Return how many models of an architecture to train together; 1 for one at a time.

    A CPU has fast kernels for the convolutions of one network, but none for several networks at
    once.
    """
    model = borrow(architecture)
    has_convolutions, draws = convolves(model), draws_while_training(model)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    give_back(model)
    device = "cuda" if architecture.device.startswith("cuda") else "cpu"
    # A custom network may not be stackable, or may draw random numbers unnoticed.
    stays_alone = (has_convolutions and device == "cpu") or is_custom(architecture.name)
    if draws or cohort == "off" or (cohort == "auto" and stays_alone):
        return 1
    return min(LARGEST_COHORT, max(1, STACKED_NUMBERS[device] // numbers))


# ---- Stacked models, and descent on them -------------------------------------------------

Tensors = dict[str, Tensor]
"""Named tensors. Stacked tensors have one more dimension in front, the clients."""


class Stack:
    """Models of one architecture as one stacked model, (C, …); one `skeleton` serves all."""

    def __init__(self, models: Sequence[nn.Module], training: bool) -> None:
        for model in models:
            model.train(training)
        self.models = models
        self.skeleton = models[0]
        self.parameters = _stacked(model.named_parameters() for model in models)
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
        """Write the values back into the models."""
        for position, model in enumerate(self.models):
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
